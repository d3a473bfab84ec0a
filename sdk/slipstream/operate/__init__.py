"""What operates the system: start and watch it, check it, show it. Nothing that users import lives here."""
