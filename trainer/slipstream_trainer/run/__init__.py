"""The process: what it does first, and its loop."""
