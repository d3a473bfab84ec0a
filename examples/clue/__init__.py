"""Temporal Clue: who did it, where, when and with what."""
