"""The time by which something goes for good: a wall clock that is set ahead is not believed at once."""

from __future__ import annotations

from dataclasses import dataclass

SLACK = 60.0
"""Seconds by which the wall clock may be ahead of the monotonic one: it is set in small steps all the time."""


@dataclass(slots=True)
class PatientClock:
    """What has to wait some seconds for its end waits these seconds, although the wall clock jumps meanwhile.

    A jump ahead counts after ``patience`` seconds: whatever was there before it has then waited as long as it was to.
    """

    patience: float
    """Seconds."""
    _at: float | None = None
    """The wall clock at the first reading, and what the monotonic clock has counted since."""
    _tick: float = 0.0
    _ahead: float | None = None
    """Since when, by the monotonic clock, the wall clock is ahead by ``_gap``."""
    _gap: float = 0.0

    def read(self, wall: float, tick: float) -> float:
        """Seconds since the epoch. ``wall``: what the wall clock says; ``tick``: what the monotonic clock does."""
        counted = wall if self._at is None else self._at + tick - self._tick
        self._tick = tick
        if wall <= counted + SLACK:
            self._ahead, self._at = None, max(wall, counted)
            return wall
        if self._ahead is None or wall - counted > self._gap + SLACK:
            self._ahead, self._gap = tick, wall - counted
        if tick - self._ahead >= self.patience:
            self._ahead, counted = None, wall
        self._at = counted
        return counted
