"""Processes that start, watch and end each other: what `slipstream up`, the proxy and the sidecars share."""
