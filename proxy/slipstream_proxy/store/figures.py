"""Figures that cost a look at much: one is good while nothing is written, and the more it costs, the longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
CHEAP = 0.05
"""Seconds of CPU: a figure that costs less is always looked up."""
WAIT = 0.5
"""Seconds that another process (a database, a busy machine) may add before they count as well."""
SHARE = 0.04
"""Share of the time that one costly figure may take."""


class Clocks(NamedTuple):
    """Seconds: of the day's course, and of this thread's work."""

    wall: float
    work: float


def clocks() -> Clocks:
    return Clocks(time.monotonic(), time.thread_time())


class _Found(NamedTuple, Generic[T]):
    value: T
    until: float
    stand: int | None


class ExactFigure(Generic[T]):
    """Looked up once for each stand of the store (``Driver.stand``); always, where others write to it, too."""

    def __init__(self) -> None:
        self._found: tuple[int, T] | None = None

    def get(self, stand: int | None, look: Callable[[], T]) -> T:
        """``stand``: from before the transaction in which ``look`` reads."""
        found = self._found
        if stand is None:
            return look()
        if found is None or found[0] != stand:
            found = self._found = stand, look()
        return found[1]


class PacedFigure(Generic[T]):
    def __init__(self, clock: Callable[[], Clocks] = clocks) -> None:
        self._clock = clock
        self._found: dict[object, _Found[T]] = {}
        self._looking = threading.Lock()

    def get(self, key: object, look: Callable[[], T], stand: int | None = None) -> T:
        """The figure of this key: as it was a moment ago where it is dear, or where somebody else looks just now.

        ``stand``: the store's (``Driver.stand``). What was found in a store that stood the same is still true.
        """
        known = self._found.get(key)
        if known is not None and (self._clock().wall < known.until or (stand is not None and stand == known.stand)):
            return known.value
        if not self._looking.acquire(blocking=known is None):
            assert known is not None
            return known.value
        try:
            before = self._clock()
            value = look()
            after = self._clock()
            cost = max(after.work - before.work, after.wall - before.wall - WAIT)
            self._found[key] = _Found(value, after.wall + cost / SHARE if cost > CHEAP else 0.0, stand)
            return value
        finally:
            self._looking.release()
