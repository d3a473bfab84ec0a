"""Calls that a worker answered and could not write down, counted where the end of its process takes nothing.

Its metrics go to a file every two seconds, and a full disk takes no file. So the count stands in a page of memory that
has its place on the disk since the worker's start.

Not compiled: a loss is rare.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from slipstream_proxy.data.shared_map import SharedMap

if TYPE_CHECKING:
    from pathlib import Path

_LOSSES: Final = struct.Struct("<qdi")


class Losses(NamedTuple):
    calls: int = 0
    at: float = 0.0
    """When the last of them was lost, in seconds since the epoch."""
    errno: int = 0
    """Why it was; 0: not for an error of the system's."""

    @property
    def why(self) -> str:
        return os.strerror(self.errno) if self.errno else "see the proxy's log"


class LossCount:
    def __init__(self, folder: Path, number: int) -> None:
        """Goes on from the count of the worker that had this number before, in an earlier run of the proxy, too."""
        self._path = folder / f"lost{number}"
        self._map = SharedMap(None, _LOSSES.size)
        self._settle()

    @property
    def calls(self) -> int:
        return Losses(*_LOSSES.unpack_from(self._map.bytes)).calls

    def add(self, calls: int, error: BaseException) -> None:
        before, number = self.calls, error.errno if isinstance(error, OSError) else None
        _LOSSES.pack_into(self._map.bytes, 0, before + calls, time.time(), number or 0)
        self._settle()

    def _settle(self) -> None:
        """Move into the file, if there is room for one by now."""
        if self._map.shared:
            return
        try:
            there = SharedMap(self._path, _LOSSES.size)
        except OSError:
            return
        before, mine = Losses(*_LOSSES.unpack_from(there.bytes)), Losses(*_LOSSES.unpack_from(self._map.bytes))
        newer = mine if mine.at > before.at else before
        _LOSSES.pack_into(there.bytes, 0, before.calls + mine.calls, newer.at, newer.errno)
        self._map = there

    def close(self) -> None:
        self._map.close()


def read_losses(folder: Path) -> Losses:
    """Those of all workers."""
    total = Losses()
    for path in folder.glob("lost[0-9]*"):
        try:
            found = Losses(*_LOSSES.unpack(path.read_bytes()))
        except (OSError, struct.error):
            continue
        newer = max(found, total, key=lambda one: one.at)
        total = Losses(total.calls + found.calls, newer.at, newer.errno)
    return total
