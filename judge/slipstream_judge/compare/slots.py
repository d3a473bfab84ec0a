"""Places for groups that are judged at once. Tenants share them: a free one goes to the tenant that has had the least.

One that comes after a pause counts as if it had had as much as the one that was served last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class JudgeSlots:
    """``limit``: of all tenants together (``judge.concurrency``)."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self.clock = limit, clock
        self.used = 0
        self.waiting: list[tuple[TenantSlots, asyncio.Future[None]]] = []
        self.served = 0.0
        """Of the tenant whose group began last."""
        self.tenants: list[TenantSlots] = []

    def tenant(self) -> TenantSlots:
        made = TenantSlots(self)
        self.tenants.append(made)
        return made

    def share(self) -> int:
        """Places that each tenant with work may count on."""
        return max(1, self.limit // max(1, sum(1 for t in self.tenants if t.busy)))

    def hand_out(self) -> None:
        self.waiting = [(tenant, place) for tenant, place in self.waiting if not place.done()]
        while self.used < self.limit and self.waiting:
            chosen = min(self.waiting, key=lambda w: w[0].served)
            self.waiting.remove(chosen)
            self.used += 1
            self.served = chosen[0].served
            chosen[1].set_result(None)


class TenantSlots:
    """One tenant's way to a place: ``async with``, as a semaphore."""

    def __init__(self, slots: JudgeSlots) -> None:
        self.slots = slots
        self.served = 0.0
        """Seconds of places that it has had, and those of others while it had no groups."""
        self.busy = 0
        """Groups that wait or are judged."""
        self._began: dict[asyncio.Task[object] | None, float] = {}

    async def __aenter__(self) -> None:
        slots = self.slots
        if not self.busy:
            self.served = max(self.served, slots.served)
        self.busy += 1
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slots.waiting.append((self, place))
        slots.hand_out()
        try:
            await place
        except asyncio.CancelledError:
            self.busy -= 1
            if place.done() and not place.cancelled():  # it was given and is not wanted any more
                slots.used -= 1
            place.cancel()
            slots.hand_out()
            raise
        self._began[asyncio.current_task()] = slots.clock()

    async def __aexit__(self, *_: object) -> None:
        self.served += self.slots.clock() - self._began.pop(asyncio.current_task())
        self.busy -= 1
        self.slots.used -= 1
        self.slots.hand_out()
