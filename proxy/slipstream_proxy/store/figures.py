"""Figures that cost a look at much: the more one costs, the longer it is good for."""

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


class PacedFigure(Generic[T]):
    def __init__(self, clock: Callable[[], Clocks] = clocks) -> None:
        self._clock = clock
        self._found: dict[object, _Found[T]] = {}
        self._looking = threading.Lock()

    def get(self, key: object, look: Callable[[], T]) -> T:
        """The figure of this key: as it was a moment ago where it is dear, or where somebody else looks just now."""
        known = self._found.get(key)
        if known is not None and self._clock().wall < known.until:
            return known.value
        if not self._looking.acquire(blocking=known is None):
            assert known is not None
            return known.value
        try:
            before = self._clock()
            value = look()
            after = self._clock()
            cost = max(after.work - before.work, after.wall - before.wall - WAIT)
            self._found[key] = _Found(value, after.wall + cost / SHARE if cost > CHEAP else 0.0)
            return value
        finally:
            self._looking.release()
