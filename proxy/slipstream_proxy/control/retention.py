"""What time does: the store's sweep every second, and days beyond ``store.keep_days`` dropped."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from slipstream.contract import Event
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.feed_watch import FeedWatch
from slipstream_proxy.control.patient_clock import PatientClock
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.threads import end

log = logging.getLogger(__name__)
SWEEP_EVERY = 1.0
RETENTION_EVERY = 600.0
EMPTY = 0.2
"""Share of the database's file that is free, from which it is rewritten after days were dropped."""


class Sweeper:
    def __init__(self, deps: Deps) -> None:
        self.deps = deps
        self._watch = FeedWatch(deps)
        self._clock = PatientClock(deps.config.reward.orphan_ttl)
        self.next_retention = 0.0
        """Monotonic."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name="sweep")]

    async def stop(self) -> None:
        await end(self._tasks)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            if not self.deps.store_answers:
                continue
            try:
                now = self.deps.now()
                sure = self._clock.read(now, time.monotonic())
                await self.deps.ask(self.deps.store.sweep, now, sure)
                await self._watch.look()
                await self._retention(sure)
            except Problem as p:
                log.warning("the sweep waits: %s", p)
            except Exception:
                log.exception("the sweep failed")

    async def _retention(self, now: float) -> None:
        """Drop days beyond ``store.keep_days``, after they are archived."""
        deps, settings = self.deps, self.deps.config.store
        if time.monotonic() < self.next_retention:
            return
        self.next_retention = time.monotonic() + RETENTION_EVERY
        keep = settings.keep_days * 86_400 if settings.keep_days is not None else None
        await deps.ask(deps.store.prune, now, keep)
        if settings.keep_days is None:
            return
        oldest = time.strftime("%Y-%m-%d", time.gmtime(now - settings.keep_days * 86400))
        dropped = [day for day in await deps.ask(deps.store.archive.days) if day < oldest]
        for day in dropped:
            archive = deps.store.archive
            if settings.archive:
                folder = Path(settings.archive).expanduser()
                folder.mkdir(parents=True, exist_ok=True)
                rows = await deps.ask(archive.retire, day, folder)
            else:
                rows = await deps.ask(archive.drop, day)
            if not rows:  # calls of that day are just being stored
                continue
            event = Event(kind="retention", at=time.time(), data={"day": day, "calls": rows})
            await deps.mutations.keep("event", event.model_dump(mode="json"))
        if deps.ingester:
            await deps.ask(deps.ingester.large.prune, now - settings.keep_days * 86400)
        if dropped:
            await deps.ask(deps.store.snapshot)  # only then does the file say how much of it is free
        # at each round: a reader may have kept the dropped tables' blocks in use until now
        deps.forgetter.shrink |= await deps.ask(deps.store.free_share) > EMPTY
