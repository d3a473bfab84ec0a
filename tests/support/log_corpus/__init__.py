"""Logs of every known form, with what each holds."""
