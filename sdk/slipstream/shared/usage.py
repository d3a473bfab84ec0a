"""What a reply says of the tokens that it took."""

from __future__ import annotations

from typing import Any


def tokens_of(answer: dict[str, Any], kind: str) -> int:
    """As its usage says; 0 where it has none."""
    usage = answer.get("usage")
    count = usage.get(kind) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 < count < 2**31 else 0
