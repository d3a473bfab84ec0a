"""``slipstream doctor``: what is wrong here, with a fix for each finding."""
