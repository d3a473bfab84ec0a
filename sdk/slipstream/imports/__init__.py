"""Logs that other programs wrote, read as episodes. Loaded only when something is imported."""
