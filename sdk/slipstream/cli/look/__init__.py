"""Commands that show what happened and where things stand."""
