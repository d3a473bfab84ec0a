"""What time does: the store's sweep every second, and days beyond ``store.keep_days`` or ``data.max_gb`` dropped.

A wall clock that is set ahead is not believed at once: nothing goes for good by it.

And a look for changes that no record tells the feed of: groups that form or wait, what the gate has read, and what
other proxies of a store did. It is taken only while somebody follows the feed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import pyarrow as pa

from slipstream.contract import Event
from slipstream_proxy.control.api.routes.episodes import end_forgetting
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.store.read.groups import GroupFilter
from slipstream_proxy.store.write.archive import ArchivePlace

CLOCK_SLACK_S = 60.0
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
        if wall <= counted + CLOCK_SLACK_S:
            self._ahead, self._at = None, max(wall, counted)
            return wall
        if self._ahead is None or wall - counted > self._gap + CLOCK_SLACK_S:
            self._ahead, self._gap = tick, wall - counted
        if tick - self._ahead >= self.patience:
            self._ahead, counted = None, wall
        self._at = counted
        return counted


WATCHED_GROUPS = 50
"""Groups whose state is watched."""


class FeedWatch:
    def __init__(self, deps: Deps) -> None:
        self.deps = deps
        self._states: dict[str, tuple[str, int, int]] | None = None
        """Group → state, episodes, rewarded ones; None: nobody followed a moment ago."""
        self._gate = dict(deps.rollout.trials.cursors)
        """Model → the outcome up to which the gate had read."""

    async def look(self) -> None:
        """Publish what is different since the last look."""
        deps = self.deps
        self._look_at_gate()  # also while nobody follows: what changes between a reader's first look and ours is told
        if not deps.feed.readers:
            self._states = None
            return
        page = await deps.ask(deps.store.reports.groups.page, GroupFilter(limit=WATCHED_GROUPS))
        before, self._states = self._states, {g.id: (g.state, g.episodes, g.rewarded) for g in page.groups}
        if before is not None:
            for group in page.groups:
                if before.get(group.id) != self._states[group.id]:
                    deps.feed.publish("group", group.key, group=group.id, key=group.key)
        if deps.stores.shared:
            deps.feed.publish("status")

    def _look_at_gate(self) -> None:
        deps, before = self.deps, self._gate
        self._gate = dict(deps.rollout.trials.cursors)
        for model, cursor in self._gate.items():
            if before.get(model, cursor) != cursor:
                deps.feed.publish("adapter", adapter=deps.rollout.registry.live(model))


log = logging.getLogger(__name__)
SWEEP_EVERY = 1.0
RETENTION_EVERY, END_EVERY = 600.0, 60.0
MIN_FREE_SHARE = 0.2
"""Share of the database's file that is free, from which it is rewritten after days were dropped."""


class Sweeper:
    def __init__(self, deps: Deps) -> None:
        self.deps = deps
        self._watch = FeedWatch(deps)
        self._clock = PatientClock(deps.config.reward.orphan_ttl)
        self.next_retention = 0.0
        """Monotonic."""
        self.next_end = 0.0
        """Monotonic: when requests to forget that were cut off are looked for."""
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
                await self._end_forgetting()
            except Problem as p:
                log.warning("the sweep waits: %s", p)
            except Exception:
                log.exception("the sweep failed")

    async def _end_forgetting(self) -> None:
        if time.monotonic() >= self.next_end:
            await end_forgetting(self.deps)
            self.next_end = time.monotonic() + END_EVERY

    async def _retention(self, now: float) -> None:
        """Drop days beyond ``store.keep_days`` and ``data.max_gb``, after they are archived."""
        deps, settings = self.deps, self.deps.config.store
        if time.monotonic() < self.next_retention:
            return
        self.next_retention = time.monotonic() + RETENTION_EVERY
        deps.archive_error = ""
        keep = settings.keep_days * 86_400 if settings.keep_days is not None else None
        await deps.ask(deps.store.prune, now, keep)
        dropped: list[str] = []
        if settings.keep_days is not None:
            oldest = time.strftime("%Y-%m-%d", time.gmtime(now - settings.keep_days * 86400))
            dropped = [day for day in await deps.ask(deps.store.archive.days) if day < oldest]
            for day in dropped:
                await self._drop(day)
            if deps.ingester:
                await deps.ask(deps.ingester.large.prune, now - settings.keep_days * 86400)
        dropped += await self._fit()
        if settings.keep_days is None and not dropped:
            return
        if dropped:
            await deps.ask(deps.store.snapshot)  # only then does the file say how much of it is free
        # at each round: a reader may have kept the dropped tables' blocks in use until now
        deps.forgetter.shrink |= await deps.ask(deps.store.db.free_share) > MIN_FREE_SHARE

    async def _drop(self, day: str) -> int:
        """→ Calls that went; 0: calls of that day are just being stored."""
        deps, archive = self.deps, self.deps.store.archive
        if deps.config.store.archive:
            rows = 0
            try:
                rows = await deps.ask(archive.retire, day, ArchivePlace(deps.config.store.archive))
            except (OSError, pa.ArrowException) as e:  # the day stays, and so do later ones
                deps.archive_error = f"{day} cannot be written to store.archive: {str(e).splitlines()[0]}"
                log.warning("%s", deps.archive_error)
        else:
            rows = await deps.ask(archive.drop, day)
        if rows:
            event = Event(kind="retention", at=time.time(), data={"day": day, "calls": rows})
            await deps.mutations.keep("event", event.model_dump(mode="json"))
        return rows

    async def _fit(self) -> list[str]:
        """Measure the folder, and make it as small as ``data.max_gb`` says, as far as may be. → Dropped days."""
        deps = self.deps
        space = await deps.space.measured(fresh=True)
        parts, limit = space.parts, space.limit
        over = 0 if limit is None else space.total - limit
        if over > 0:
            over -= await in_thread(deps.rollout.swapper.forget_files, over)
        dropped: list[str] = []
        calls = (await deps.ask(deps.store.statistics.counts, deps.now())).get("calls", 0) if over > 0 else 0
        for day in (await deps.ask(deps.store.archive.days))[:-1] if over > 0 and "store" in parts else ():
            over -= parts["store"] * await self._drop(day) // max(1, calls)
            dropped.append(day)
            if over <= 0:
                break
        return dropped
