"""Commands that set up and start."""
