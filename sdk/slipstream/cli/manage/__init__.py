"""Commands for who operates it."""
