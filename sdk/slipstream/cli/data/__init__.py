"""Commands on what is recorded."""
