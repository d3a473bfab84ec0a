"""A run's calls: stored once, as a tree of what each goes on with."""
