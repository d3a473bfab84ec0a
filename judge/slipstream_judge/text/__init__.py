"""Runs as the judge reads them, and what it is asked."""
