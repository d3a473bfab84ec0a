"""From a group to its scores."""
