"""Captured calls as token-exact rows, and how they are laid out."""
