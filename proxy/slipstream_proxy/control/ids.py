"""Ids that sort by time: 10 characters of milliseconds, 16 of chance, in Crockford's base 32 (the ULID layout)."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def _text(number: int, length: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * i)) & 31] for i in reversed(range(length)))


def new_id(now: float | None = None) -> str:
    """26 characters; ``now`` is seconds since the epoch."""
    return _text(int((time.time() if now is None else now) * 1000), 10) + _text(secrets.randbits(80), 16)
