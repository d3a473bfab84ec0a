"""What the workers of one proxy tell each other of episodes: which conversation stands where, and what is done.

A client's next call may come to another worker than its last one. The table is a file in memory: a slot is a digest
of what is said, when (the machine's monotonic clock), and a name. It is a cache like ``EpisodeMemory``; what is
overwritten in it is forgotten.
"""

from __future__ import annotations

import hashlib
import struct
import time
from pathlib import Path

from slipstream_proxy.data.shared_map import SharedMap

TABLE_SLOTS = 32768
PROBED_SLOTS = 16
"""Slots in which a digest may stand."""
MAX_SAME_NAMES = 128
"""Names that one digest may have: runs that said the same. They stand in shares of ``_SHARE``, each at its place."""
_SHARE = 8
_SHARES = MAX_SAME_NAMES // _SHARE

_SLOT = struct.Struct("<16sdIB131s")


class SharedTable:
    """One worker's view of the table. Runs with the same messages have the same digest in several slots."""

    def __init__(self, path: Path, window: float) -> None:
        """Raises ``OSError`` where there is no room for the file."""
        self.window = window
        self._full: dict[bytes, int] = {}
        """Digest → its first share that had room the last time, if that was not the first one."""
        self._map = SharedMap(path, TABLE_SLOTS * _SLOT.size)
        self._table = self._map.bytes

    def put(self, kind: str, key: str, what: bytes, name: str) -> None:
        """Say something; ``only`` says what replaces what was said before."""
        self._put(_digest(kind, key, what), name, replace=False)

    def only(self, kind: str, key: str, what: bytes, name: str) -> None:
        self._put(_digest(kind, key, what), name, replace=True)

    def _put(self, digest: bytes, name: str, *, replace: bool) -> None:
        text = name.encode()
        if len(text) > 131:
            return
        with self._map.locked():
            self._write(digest if replace else self._with_room(digest), text, replace=replace)

    def _with_room(self, digest: bytes) -> bytes:
        """The first share that is not full, or the last one."""
        start = self._full.get(digest, 0)
        if start and not self._find(_share(digest, start - 1)):
            start = 0  # what stood there is forgotten: nobody would look further
        for number in range(start, _SHARES):
            share = _share(digest, number)
            if len(self._find(share)) < _SHARE:
                break
        if number:
            if len(self._full) >= _SHARE * PROBED_SLOTS:
                self._full.clear()
            self._full[digest] = number
        return share

    def _write(self, digest: bytes, text: bytes, *, replace: bool) -> None:
        now = time.monotonic()
        chosen, oldest = -1, float("inf")
        first = _first(digest)
        for at in range(first, first + PROBED_SLOTS * _SLOT.size, _SLOT.size):
            found, when, _, _, _ = _SLOT.unpack_from(self._table, at)
            when = when if found.strip(b"\0") and 0.0 <= now - when <= self.window else 0.0
            if replace and found == digest:
                chosen = at
                break
            if when < oldest:
                chosen, oldest = at, when
        _SLOT.pack_into(self._table, chosen, digest, now, 0, len(text), text)

    def names(self, kind: str, key: str, what: bytes) -> list[str]:
        """All that was said of it."""
        return [name for _, _, name in self._all(_digest(kind, key, what))]

    def claim(self, kind: str, key: str, what: bytes, *, once: bool = False) -> str | None:
        """One of them, that was claimed the fewest times; ``once``: that was never claimed."""
        with self._map.locked():
            found = self._all(_digest(kind, key, what))
            if not found:
                return None
            used, at, name = min(found)
            if used and once:
                return None
            digest, when, _, size, text = _SLOT.unpack_from(self._table, at)
            _SLOT.pack_into(self._table, at, digest, when, used + 1, size, text)
        return name

    def _all(self, digest: bytes) -> list[tuple[int, int, str]]:
        """(times claimed, place, name) of what was said and is not overwritten."""
        found: list[tuple[int, int, str]] = []
        for number in range(_SHARES):
            here = self._find(_share(digest, number))
            found += here
            if not here:
                break
        return found

    def _find(self, digest: bytes) -> list[tuple[int, int, str]]:
        """The same of one share."""
        first = _first(digest)
        there = self._table[first : first + PROBED_SLOTS * _SLOT.size]
        at = there.find(digest)
        if at < 0:
            return []
        now = time.monotonic()
        found = []
        while at >= 0:
            if not at % _SLOT.size:
                _, when, used, size, text = _SLOT.unpack_from(there, at)
                if 0.0 <= now - when <= self.window:
                    found.append((used, first + at, text[:size].decode("utf-8", "replace")))
            at = there.find(digest, at + 1)
        return found

    def close(self) -> None:
        self._map.close()


def _digest(kind: str, key: str, what: bytes) -> bytes:
    return hashlib.blake2b(f"{kind}\0{key}\0".encode() + what, digest_size=16).digest()


def _share(digest: bytes, number: int) -> bytes:
    """Under which digest a share of a digest's names stands."""
    return hashlib.blake2b(b"%b%d" % (digest, number), digest_size=16).digest() if number else digest


def _first(digest: bytes) -> int:
    """Where the slots begin in which it may stand."""
    return int.from_bytes(digest[:4], "little") % (TABLE_SLOTS - PROBED_SLOTS) * _SLOT.size
