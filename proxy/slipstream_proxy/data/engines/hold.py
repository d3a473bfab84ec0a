"""Calls that come while the trainer has the GPU wait here. None is lost, and they go on in order.

Not compiled: it runs only while a trainer has the GPU.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream_proxy.data.wire.errors import RequestRefused

if TYPE_CHECKING:
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.observe.metrics import WorkerMetrics

log = logging.getLogger(__name__)
MAX_WAITING_CALLS = 4096
"""The most calls that wait in a worker. Further calls get a 503 with Retry-After."""
WAKE_GRACE_S = 30.0
"""Seconds after a hold's end in which the control plane may still wake the engine. Then calls go on anyway."""
LOOK_INTERVAL_S = 0.25


@dataclass(slots=True)
class Waiting:
    since: float
    go: Callable[[], None]
    give_up: Callable[[RequestRefused], None]


class Holding:
    """The calls that wait in one worker. Each call reads ``on``, which costs one comparison while nothing is held."""

    def __init__(self, live: LiveView, metrics: WorkerMetrics, timeout: float) -> None:
        """``timeout``: seconds that a call waits at most."""
        self._live, self._metrics, self._timeout = live, metrics, timeout
        self._loop = asyncio.get_running_loop()
        self.waiting: deque[Waiting] = deque()
        self.longest = 0.0
        """Seconds, since the worker's start."""
        self._task: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        until = self._live.held_until
        return until is not None and time.time() < until + WAKE_GRACE_S

    def wait(self, go: Callable[[], None], give_up: Callable[[RequestRefused], None]) -> None:
        """``go``: the engine is back. ``give_up``: the timeout is over. Raises ``RequestRefused`` if too many wait."""
        if len(self.waiting) >= MAX_WAITING_CALLS:
            raise RequestRefused(503, "too many calls wait while the trainer has the engine", retry_after=5.0)
        self.waiting.append(Waiting(self._loop.time(), go, give_up))
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._watch())

    async def over(self) -> None:
        """The same for a coroutine. Raises ``RequestRefused``."""
        while self.on:
            done = self._loop.create_future()

            def go(done: asyncio.Future[None] = done) -> None:
                if not done.done():
                    done.set_result(None)

            def give_up(e: RequestRefused, done: asyncio.Future[None] = done) -> None:
                if not done.done():
                    done.set_exception(e)

            self.wait(go, give_up)
            await done

    def look(self) -> None:
        """Something may have changed: who waits goes on, or has waited too long."""
        if not self.waiting:
            return
        now = self._loop.time()
        if not self.on:
            waiting, self.waiting = self.waiting, deque()
            for one in waiting:
                self._count(now - one.since)
                one.go()
            return
        while self.waiting and now - self.waiting[0].since > self._timeout:
            one = self.waiting.popleft()
            self._count(now - one.since)
            one.give_up(RequestRefused(504, "the trainer has had the engine for too long", retry_after=5.0))

    def _count(self, seconds: float) -> None:
        metrics = self._metrics
        metrics.add("slipstream_held_calls_total")
        metrics.add("slipstream_hold_wait_seconds_total", amount=seconds)
        if seconds > self.longest:
            self.longest = seconds
            metrics.set("slipstream_hold_longest_seconds", seconds)

    async def _watch(self) -> None:
        """The live state tells when it is over; time passes by itself."""
        while self.waiting:
            await asyncio.sleep(LOOK_INTERVAL_S)
            self.look()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
