"""What comes of a step: checkpoints, adapters, events, and the way back to them."""
