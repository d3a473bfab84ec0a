"""The tables and what stands in them as it is: rows, types, kept counters. Nothing here knows what a run is."""
