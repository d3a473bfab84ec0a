"""Models on this machine, and what their engine needs to be told."""
