from slipstream.cli import entry

entry()
