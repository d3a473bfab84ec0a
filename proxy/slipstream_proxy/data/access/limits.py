"""Rates and concurrency of API keys, counted over all workers of a proxy: a table in memory that they share, a slot
for each limited key.

A slot holds the key's id, its token bucket (tokens, and when they were counted, by the machine's monotonic clock) and
a count of running requests for each worker. A worker that starts clears its own counts, so that one that was killed
leaves none behind for longer than its restart takes.
"""

from __future__ import annotations

import logging
import struct
import time
from pathlib import Path

from slipstream_proxy.data.shared_map import SharedMap
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.keys import Key

log = logging.getLogger(__name__)

MAX_WORKERS = 64
LIMIT_SLOTS = 2048
_ID = struct.Struct("<16s")
_BUCKET = struct.Struct("<dd")
_RUNNING = struct.Struct(f"<{MAX_WORKERS}I")
_COUNT = struct.Struct("<I")
_SLOT = 16 + _BUCKET.size + _RUNNING.size
_ROW = 16 + _BUCKET.size


class Limits:
    """``path`` None: a worker that is alone needs no file."""

    def __init__(self, path: Path | None = None, workers: int = 1, number: int = 0) -> None:
        self.workers = workers
        self.number = number
        self._slots: dict[str, int] = {}
        try:
            self._map = SharedMap(None if workers == 1 else path, LIMIT_SLOTS * _SLOT)
        except OSError as e:
            self._map = SharedMap(None, LIMIT_SLOTS * _SLOT)
            log.error("limits of API keys count in each worker alone: %s", e)
        self._table = self._map.bytes
        if self._map.shared:
            with self._map.locked():
                for at in range(0, LIMIT_SLOTS * _SLOT, _SLOT):
                    if self._table[at]:
                        _COUNT.pack_into(self._table, at + _ROW + 4 * self.number, 0)

    def enter(self, key: Key) -> None:
        """Let a request in, or raise ``RequestRefused`` (429); ``leave`` must follow."""
        if key.rate is None and key.concurrency is None:
            return
        now = time.monotonic()
        with self._map.locked():
            at = self._slot(key, now)
            mine = at + _ROW + 4 * self.number
            if key.concurrency is not None and self._running(at) >= key.concurrency:
                raise RequestRefused(429, "too many concurrent requests with this API key", retry_after=1.0)
            if key.rate is not None:
                self._take(at + 16, key.rate, now)
            _COUNT.pack_into(self._table, mine, _COUNT.unpack_from(self._table, mine)[0] + 1)

    def leave(self, key: Key) -> None:
        if key.rate is None and key.concurrency is None:
            return
        with self._map.locked():
            at = self._find(key.id)
            if at is not None:
                mine = at + _ROW + 4 * self.number
                _COUNT.pack_into(self._table, mine, max(0, _COUNT.unpack_from(self._table, mine)[0] - 1))

    def _running(self, at: int) -> int:
        return sum(_RUNNING.unpack_from(self._table, at + _ROW)[: self.workers])

    def _take(self, at: int, rate: float, now: float) -> None:
        """A token from the bucket; it holds a second's worth, and one at least."""
        tokens, counted = _BUCKET.unpack_from(self._table, at)
        if not 0.0 <= now - counted < 1e9:  # counted before the machine was started again
            tokens = rate
        tokens = min(max(1.0, rate), tokens + max(0.0, now - counted) * rate)
        if tokens < 1.0:
            _BUCKET.pack_into(self._table, at, tokens, now)
            wait = (1.0 - tokens) / rate if rate > 0.0 else 3600.0
            raise RequestRefused(429, "the request rate of this API key is used up", retry_after=wait)
        _BUCKET.pack_into(self._table, at, tokens - 1.0, now)

    def _find(self, key_id: str) -> int | None:
        """Where a key's slot is, if it has one."""
        name = key_id.encode()[:16].ljust(16, b"\0")
        at = self._slots.get(key_id)
        if at is not None and self._table[at : at + 16] == name:
            return at
        for at in range(0, LIMIT_SLOTS * _SLOT, _SLOT):
            if self._table[at : at + 16] == name:
                self._slots[key_id] = at
                return at
        return None

    def _slot(self, key: Key, now: float) -> int:
        """A key's slot: its own, a free one, or that of the key that nobody has used for the longest time."""
        at = self._find(key.id)
        if at is not None:
            return at
        places = range(0, LIMIT_SLOTS * _SLOT, _SLOT)
        at = next((p for p in places if not self._table[p]), None)
        if at is None:
            idle = [p for p in places if not self._running(p)] or list(places)
            at = min(idle, key=lambda p: _BUCKET.unpack_from(self._table, p + 16)[1])
        _ID.pack_into(self._table, at, key.id.encode()[:16])
        _BUCKET.pack_into(self._table, at + 16, max(1.0, key.rate or 0.0), now)
        _RUNNING.pack_into(self._table, at + _ROW, *[0] * MAX_WORKERS)
        self._slots[key.id] = at
        return at

    def close(self) -> None:
        self._map.close()
