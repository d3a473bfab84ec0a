"""The process: what is made once, and what runs until it ends."""
