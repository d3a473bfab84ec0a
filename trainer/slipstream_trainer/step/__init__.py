"""One batch, from samples to a stepped policy."""
