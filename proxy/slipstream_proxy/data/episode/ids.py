"""Ids that sort by time."""

from __future__ import annotations

import os
from typing import Final

_NODE: Final = os.urandom(3).hex()
_HEX: Final = [f"{n:03x}" for n in range(4096)]
_count = 0
_bucket = 0
_prefix = ""


def new_id(now: float) -> str:
    """26 characters that sort by time (``now``, s since the epoch): milliseconds (14), process (6), count (6)."""
    global _count, _bucket, _prefix
    _count = (_count + 1) & 0xFFFFFF
    bucket = int(now * 1000.0)
    if bucket != _bucket:
        _bucket = bucket
        _prefix = f"{bucket * 1000:014x}{_NODE}"
    return _prefix + _HEX[_count >> 12] + _HEX[_count & 4095]
