"""The judge's process."""
