"""The proxy's processes."""
