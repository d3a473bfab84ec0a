"""Commands that take recorded runs in and out."""
