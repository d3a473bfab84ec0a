"""Commands that change what is learnt, and who may ask."""
