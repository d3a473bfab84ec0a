"""One module for each form of log. ``slipstream_imports.registry`` has a line for each."""
