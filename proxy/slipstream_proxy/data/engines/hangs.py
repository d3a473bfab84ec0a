"""Which engines hang, as the workers of one proxy tell each other: a table in memory that they share, a row for each
engine.

A row holds since when calls hang there (monotonic seconds, 0: they do not), when a reply's body brought a byte last,
and which worker's call tries the engine out, since when. Health checks write nothing here: an engine may answer them
and hang.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slipstream_proxy.data.shared_map import SharedMap

log = logging.getLogger(__name__)

_VERSION: Final = struct.Struct("<Q")
_TIME: Final = struct.Struct("<d")
_OWNER: Final = struct.Struct("<I")
_HEARD: Final = 8
_SINCE: Final = 16
_PROBER: Final = 24
_ROW: Final = 32
_SLACK: Final = 15.0
"""Seconds after its timeout for which a call counts as running: its worker may have been killed."""


class HangTable:
    """One worker's view. Of an engine without a row nothing is shared."""

    def __init__(self, urls: Sequence[str], timeout: float, path: Path | None = None, number: int = 0) -> None:
        """``timeout``: a call's silent seconds. ``path`` None: a lone worker. ``number`` tells the workers apart."""
        self._rows = {url.rstrip("/"): _VERSION.size + i * _ROW for i, url in enumerate(urls)}
        self._timeout, self._me = timeout, number + 1
        size = _VERSION.size + len(urls) * _ROW
        try:
            self._map = SharedMap(path, size)
        except OSError as e:
            self._map = SharedMap(None, size)
            log.error("each worker finds out alone which engines hang: %s", e)
        self._table = self._map.bytes
        for url in self._rows:
            self.release(url)  # what this worker's predecessor tried

    def version(self) -> bytes:
        """Another one whenever an engine begins or ceases to hang, as other workers say."""
        return self._table[: _VERSION.size] if self._map.shared else b""

    def hung(self, url: str) -> float:
        """Since when its calls hang, or 0.0."""
        at = self._rows.get(url)
        return 0.0 if at is None else float(_TIME.unpack_from(self._table, at)[0])

    def hang(self, url: str) -> float:
        """A call hung: what ``hung`` says from now on."""
        return self._write(url, time.monotonic())

    def clear(self, url: str) -> None:
        """A call was answered."""
        self._write(url, 0.0)
        self.hear(url, time.monotonic())

    def _write(self, url: str, since: float) -> float:
        at = self._rows.get(url)
        if at is None:
            return 0.0
        with self._map.locked():
            _TIME.pack_into(self._table, at, since)
            _VERSION.pack_into(self._table, 0, _VERSION.unpack_from(self._table, 0)[0] + 1)
        return since

    def hear(self, url: str, when: float) -> None:
        """A reply's body brought a byte then."""
        at = self._rows.get(url)
        if at is not None and when > _TIME.unpack_from(self._table, at + _HEARD)[0]:
            _TIME.pack_into(self._table, at + _HEARD, when)

    def silent(self, url: str) -> bool:
        """Whether no reply of any worker has brought a byte for as long as a call waits."""
        at = self._rows.get(url)
        heard = 0.0 if at is None else float(_TIME.unpack_from(self._table, at + _HEARD)[0])
        return not heard or time.monotonic() - heard > self._timeout

    def taken(self, url: str) -> bool:
        """Whether a call of some worker tries this engine out."""
        at = self._rows.get(url)
        if at is None or not _OWNER.unpack_from(self._table, at + _PROBER)[0]:
            return False
        since = float(_TIME.unpack_from(self._table, at + _SINCE)[0])
        return time.monotonic() - since < self._timeout + _SLACK

    def claim(self, url: str) -> bool:
        """Whether a call of this worker may try it out; ``release`` must follow."""
        at = self._rows.get(url)
        if at is None:
            return True
        with self._map.locked():
            if self.taken(url):
                return False
            _TIME.pack_into(self._table, at + _SINCE, time.monotonic())
            _OWNER.pack_into(self._table, at + _PROBER, self._me)
        return True

    def release(self, url: str) -> None:
        at = self._rows.get(url)
        if at is None:
            return
        with self._map.locked():
            if _OWNER.unpack_from(self._table, at + _PROBER)[0] == self._me:
                _OWNER.pack_into(self._table, at + _PROBER, 0)

    def close(self) -> None:
        self._map.close()
