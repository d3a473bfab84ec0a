"""The gate: is what is served now worse than what was last accepted? docs/gate.md has the method and its guarantee.

The modules here are pure: rewards go in, decisions and shares come out. ``control.adapters.gatekeeper`` connects them
to the store and the engines.
"""
