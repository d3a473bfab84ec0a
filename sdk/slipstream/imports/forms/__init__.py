"""One module for each form of log. ``slipstream.imports.registry`` has a line for each."""
