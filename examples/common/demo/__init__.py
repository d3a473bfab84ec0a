"""The demo: an agent gets better while it runs."""
