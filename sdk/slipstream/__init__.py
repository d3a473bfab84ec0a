"""Slipstream: your agent's own traffic trains its next version."""

__version__ = "0.1.0"
