"""Ids that sort by time."""

from __future__ import annotations

import os
from typing import Final

_NODE: Final = os.urandom(3).hex()
_HEX: Final = [f"{n:03x}" for n in range(4096)]


class _Ids:
    """A class, because a compiled module looks its globals up."""

    __slots__ = ("count", "high", "start")

    def __init__(self) -> None:
        self.count = 0
        self.high = -1
        self.start = ""
        """``high`` in 8 digits: the time without its last 24 bits."""

    def make(self, now: float) -> str:
        self.count = count = (self.count + 1) & 0xFFFFFF
        time = int(float(int(now * 1000.0)) * 1000.0)  # exact, and cheaper than integers beyond 30 bits
        if time >> 24 != self.high:
            self.high = time >> 24
            self.start = f"{self.high:08x}"
        return (
            f"{self.start}{_HEX[(time >> 12) & 4095]}{_HEX[time & 4095]}{_NODE}{_HEX[count >> 12]}{_HEX[count & 4095]}"
        )


_ids: Final = _Ids()


def new_id(now: float) -> str:
    """26 characters that sort by time (``now``, s since the epoch): microseconds of whole milliseconds (14), process
    (6), count (6).
    """
    return _ids.make(now)
