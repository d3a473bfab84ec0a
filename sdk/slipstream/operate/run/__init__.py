"""Processes of this machine: started, watched, found again."""
