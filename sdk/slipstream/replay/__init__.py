"""Replay: the steps of recorded episodes, asked of two sides and compared."""
