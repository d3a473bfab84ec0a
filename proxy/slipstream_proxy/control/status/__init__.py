"""Where things stand, and why there was no step yet."""
