"""Numbers in words."""

from __future__ import annotations


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def span(seconds: float) -> str:
    """In words: ``90 s``, ``12 min``, ``3 h``."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
