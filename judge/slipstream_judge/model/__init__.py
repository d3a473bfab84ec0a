"""The judge's model: calls, what they may cost, what was answered before."""
