"""Whose replies a worker reads next, so that one key's large ones do not hold up everybody's small ones.

A read that brings a few tokens is taken at once. Of a larger one each key has a piece read in a turn of the event
loop; the rest waits in the key's line, and what its socket brings waits in the system until the line is done. A byte of
a stream's events costs a worker sixteen times as much as one of a whole reply, so that of these all is larger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from slipstream_proxy.data.wire.receiver import Connection

SMALL_BYTES: Final = 2048
"""Of a read that never waits."""
PIECE_BYTES: Final = 4096
"""Of each key in one turn: what the events of that take is what everybody else waits for."""
WHOLE_FACTOR: Final = 16
"""By so much a piece of a whole reply may be larger."""
KEYS_OF_TURN: Final = 8
"""Whose lines go on in one turn."""


class Turns:
    """The lines of all keys in one worker."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, deque[Connection]] = {}
        self._served: set[str] = set()
        """Keys of which a piece was taken at once in this turn."""
        self._coming = False

    def at_once(self, key: str, size: int) -> bool:
        """Whether a read of so many bytes may be taken now."""
        if size > PIECE_BYTES or key in self._served or key in self._lines:
            return False
        self._served.add(key)
        self._come()
        return True

    def wait(self, key: str, connection: Connection) -> None:
        """Its ``take_turn`` is called until it says that no more waits."""
        self._lines.setdefault(key, deque()).append(connection)
        self._come()

    def _come(self) -> None:
        if not self._coming:
            self._coming = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._coming = False
        self._served.clear()
        for key in list(self._lines)[:KEYS_OF_TURN]:
            line = self._lines[key]
            if not line[0].take_turn(PIECE_BYTES):
                line.popleft()
            del self._lines[key]
            if line:
                self._lines[key] = line  # behind the others
        if self._lines:
            self._come()
