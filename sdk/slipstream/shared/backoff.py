"""Pauses between tries that grow while nothing works.

Every loop here that tries again waits with a ``Backoff``. It is not tenacity's decorator, because half of these loops
are woken or stopped in the middle of a pause, and a round that works starts them from the first pause again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """``first`` seconds, then ``factor`` times as long each time, up to ``most`` seconds."""

    first: float
    most: float
    factor: float = 2.0
    pause: float = field(init=False)
    """Seconds that the next wait lasts."""

    def __post_init__(self) -> None:
        self.pause = self.first

    def reset(self) -> None:
        """A try worked: the next pause is the first one again."""
        self.pause = self.first

    def next(self) -> float:
        """Seconds to wait now; the next pause is longer."""
        now, self.pause = self.pause, min(self.pause * self.factor, self.most)
        return now

    async def sleep(self, wake: asyncio.Event | None = None) -> bool:
        """Wait, at most until ``wake`` is set. Returns whether it is set."""
        return await rest(self.next(), wake)

    def wait(self, stop: threading.Event) -> bool:
        """Wait in a thread, at most until ``stop`` is set. Returns whether it is set."""
        return stop.wait(self.next())


async def rest(seconds: float, wake: asyncio.Event | None = None) -> bool:
    """Sleep for ``seconds``, at most until ``wake`` is set. Returns whether it is set."""
    if wake is None:
        await asyncio.sleep(seconds)
        return False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
    return wake.is_set()
