"""Ids that sort by time: 10 characters of milliseconds, 16 of chance, in Crockford's base 32 (the ULID layout)."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def text_of(number: int, length: int) -> str:
    """The lowest ``5 × length`` bits of ``number``."""
    return "".join(_ALPHABET[(number >> (5 * i)) & 31] for i in reversed(range(length)))


def new_id(now: float | None = None) -> str:
    """26 characters; ``now`` is seconds since the epoch."""
    return text_of(int((time.time() if now is None else now) * 1000), 10) + text_of(secrets.randbits(80), 16)
