"""From rewards to a gradient: advantages, losses, how far a step goes, and what guards it."""
