"""The inference engines as the control plane sees them."""
