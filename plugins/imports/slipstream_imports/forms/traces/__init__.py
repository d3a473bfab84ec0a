"""Logs of tools that record calls."""
