"""Runs that agents and environments wrote."""
