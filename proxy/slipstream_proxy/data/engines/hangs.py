"""Which engines hang, as the workers of one proxy tell each other: a table in memory that they share, a row for each
engine that a call was sent to, whenever it came.

A row holds which engine it is (a hash of its address, 0: nobody's yet), since when calls hang there (monotonic seconds,
0: they do not), when a reply's body brought a byte last, and which worker's call tries the engine out, since when.
Health checks write nothing here: an engine may answer them and hang.
"""

from __future__ import annotations

import logging
import struct
import time
from hashlib import blake2b
from pathlib import Path
from typing import Final

from slipstream_proxy.data.shared_map import SharedMap

log = logging.getLogger(__name__)

_VERSION: Final = struct.Struct("<Q")
_NAME: Final = struct.Struct("<Q")
_TIME: Final = struct.Struct("<d")
_OWNER: Final = struct.Struct("<I")
_HUNG: Final = 8
_HEARD: Final = 16
_SINCE: Final = 24
_PROBER: Final = 32
_ROW: Final = 40
_ROWS: Final = 1024
"""Of engines that were there since the proxy's start. When all are taken, that of which nothing was heard for longest
is given away.
"""
_SLACK: Final = 15.0
"""Seconds after its timeout for which a call counts as running: its worker may have been killed."""


class HangTable:
    """One worker's view."""

    def __init__(self, timeout: float, path: Path | None = None, number: int = 0) -> None:
        """``timeout``: a call's silent seconds. ``path`` None: a lone worker. ``number`` tells the workers apart."""
        self._timeout, self._me = timeout, number + 1
        self._names: dict[str, int] = {}
        self._places: dict[str, int] = {}
        size = _VERSION.size + _ROWS * _ROW
        try:
            self._map = SharedMap(path, size)
        except OSError as e:
            self._map = SharedMap(None, size)
            log.error("each worker finds out alone which engines hang: %s", e)
        self._table = self._map.bytes
        with self._map.locked():
            for at in range(_VERSION.size, size, _ROW):
                self._free(at)  # what this worker's predecessor tried

    def _at(self, url: str) -> int:
        """Where the engine's row is; it gets one with its first question."""
        at = self._places.get(url)
        if at is not None and _NAME.unpack_from(self._table, at)[0] == self._names[url]:
            return at
        name = int.from_bytes(blake2b(url.rstrip("/").encode(), digest_size=8).digest(), "little") or 1
        with self._map.locked():
            at = self._place(name)
        self._names[url], self._places[url] = name, at
        return at

    def _place(self, name: int) -> int:
        oldest, first = _VERSION.size, float("inf")
        for number in range(_ROWS):
            at = _VERSION.size + (name + number) % _ROWS * _ROW
            there = int(_NAME.unpack_from(self._table, at)[0])
            if there == name:
                return at
            if not there:
                _NAME.pack_into(self._table, at, name)
                return at
            known = max(float(_TIME.unpack_from(self._table, at + what)[0]) for what in (_HUNG, _HEARD, _SINCE))
            if known < first:
                oldest, first = at, known
        self._table[oldest : oldest + _ROW] = _NAME.pack(name) + bytes(_ROW - _NAME.size)
        return oldest

    def _free(self, at: int) -> None:
        if _OWNER.unpack_from(self._table, at + _PROBER)[0] == self._me:
            _OWNER.pack_into(self._table, at + _PROBER, 0)

    def version(self) -> bytes:
        """Another one whenever an engine begins or ceases to hang, as other workers say."""
        return self._table[: _VERSION.size] if self._map.shared else b""

    def hung(self, url: str) -> float:
        """Since when its calls hang, or 0.0."""
        return float(_TIME.unpack_from(self._table, self._at(url) + _HUNG)[0])

    def hang(self, url: str) -> float:
        """A call hung: what ``hung`` says from now on."""
        return self._write(url, time.monotonic())

    def clear(self, url: str) -> None:
        """A call was answered."""
        self._write(url, 0.0)
        self.hear(url, time.monotonic())

    def _write(self, url: str, since: float) -> float:
        at = self._at(url)
        with self._map.locked():
            _TIME.pack_into(self._table, at + _HUNG, since)
            _VERSION.pack_into(self._table, 0, _VERSION.unpack_from(self._table, 0)[0] + 1)
        return since

    def hear(self, url: str, when: float) -> None:
        """A reply's body brought a byte then."""
        at = self._at(url)
        if when > _TIME.unpack_from(self._table, at + _HEARD)[0]:
            _TIME.pack_into(self._table, at + _HEARD, when)

    def silent(self, url: str) -> bool:
        """Whether no reply of any worker has brought a byte for as long as a call waits."""
        heard = float(_TIME.unpack_from(self._table, self._at(url) + _HEARD)[0])
        return not heard or time.monotonic() - heard > self._timeout

    def taken(self, url: str) -> bool:
        """Whether a call of some worker tries this engine out."""
        return self._is_taken(self._at(url))

    def _is_taken(self, at: int) -> bool:
        if not _OWNER.unpack_from(self._table, at + _PROBER)[0]:
            return False
        since = float(_TIME.unpack_from(self._table, at + _SINCE)[0])
        return time.monotonic() - since < self._timeout + _SLACK

    def claim(self, url: str) -> bool:
        """Whether a call of this worker may try it out; ``release`` must follow."""
        at = self._at(url)
        with self._map.locked():
            if self._is_taken(at):
                return False
            _TIME.pack_into(self._table, at + _SINCE, time.monotonic())
            _OWNER.pack_into(self._table, at + _PROBER, self._me)
        return True

    def release(self, url: str) -> None:
        at = self._at(url)
        with self._map.locked():
            self._free(at)

    def close(self) -> None:
        self._map.close()
