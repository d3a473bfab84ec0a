"""The log, the store that is made from it, and what both owe to each other."""
