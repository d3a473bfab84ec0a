"""Steps that read a call's result and change nothing."""
