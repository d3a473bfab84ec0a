"""Commands that change what is learned, and who may ask."""
