"""Steps of a call's way. A new one is a file here and a line in ``plane.py``."""
