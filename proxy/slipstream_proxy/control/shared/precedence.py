"""Long work of a thread stands aside while somebody waits for a short answer.

Threads of one process take turns. A reward needs a dozen of them, and behind a thread that computes each costs a
millisecond or more. So between two records that thread rests for as long as a reward is under way, and for no more than
a share of its own time, so that no key keeps the store from following.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE_S, RESTED_SHARE = 0.1, 1.0
"""Seconds that a piece of work rests for others at most, and what more by the time that it has worked."""
LOOK_INTERVAL_S = 0.0005
"""Seconds between two looks at whether the others have their answers."""


class Precedence:
    """Counts who waits for a short answer. The event loops alone change the count."""

    def __init__(self) -> None:
        self.waiting = 0

    @contextmanager
    def first(self) -> Iterator[None]:
        """The block goes before long work."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


ANSWERS_FIRST = Precedence()
"""This process's: its threads share one interpreter."""


class Aside:
    """One piece of long work, from now on."""

    def __init__(
        self,
        precedence: Precedence = ANSWERS_FIRST,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._precedence, self._clock, self._sleep = precedence, clock, sleep
        self._began = clock()
        self._rested = 0.0

    def step(self) -> None:
        """Between two records. Blocks while somebody goes first and this work has rested less than its share."""
        while self._precedence.waiting:
            now = self._clock()
            if self._rested >= AT_ONCE_S + RESTED_SHARE * (now - self._began - self._rested):
                return
            self._sleep(LOOK_INTERVAL_S)
            self._rested += self._clock() - now
