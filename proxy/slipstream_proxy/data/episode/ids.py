"""Ids that sort by time."""

from __future__ import annotations

import os
from typing import Final

_NODE: Final = os.urandom(3).hex().encode()
_HEX: Final = [b"%03x" % n for n in range(4096)]


class _Ids:
    """A class, because a compiled module looks its globals up."""

    __slots__ = ("count", "high", "start")

    def __init__(self) -> None:
        self.count = 0
        self.high = -1
        self.start = b""
        """``high`` in 8 digits: the time without its last 24 bits."""

    def make(self, now: float) -> bytes:
        self.count = count = (self.count + 1) & 0xFFFFFF
        time = int(float(int(now * 1000.0)) * 1000.0)  # exact, and cheaper than integers beyond 30 bits
        if time >> 24 != self.high:
            self.high = time >> 24
            self.start = b"%08x" % self.high
        high, low, first, last = _HEX[(time >> 12) & 4095], _HEX[time & 4095], _HEX[count >> 12], _HEX[count & 4095]
        return b"%b%b%b%b%b%b" % (self.start, high, low, _NODE, first, last)


_ids: Final = _Ids()


def new_id_bytes(now: float) -> bytes:
    """26 characters that sort by time (``now``, s since the epoch): microseconds of whole milliseconds (14), process
    (6), count (6).
    """
    return _ids.make(now)


def new_id(now: float) -> str:
    """The same as text."""
    return _ids.make(now).decode("ascii")
