"""Why something does not work, or no step comes: a module for each part of the way from a call to a live version.

Each function yields a line for each cause that it finds, with severity, count and fix.
"""
