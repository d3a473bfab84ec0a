"""The HTTP API: routes, errors in one shape, permissions, its own description."""
