"""What every room of the control plane uses."""
