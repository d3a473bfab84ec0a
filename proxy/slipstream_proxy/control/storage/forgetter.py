"""Forgets episodes: nothing reads them from the request on. In the background, once for many, what the database's file,
the spool and archives still hold of them is written over; a restart goes on with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from weakref import WeakValueDictionary

from slipstream import contract as c
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.control.storage.store_handle import StoreHandle
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import Erasing, Forgotten, Name
from slipstream_proxy.store.write.archive import ArchivePlace, forget_archived

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5
"""Seconds between looks at whether the moment has come."""
ASK_EVERY, ASK_SHARED = 60.0, 10.0
"""Seconds after which the store is asked for what waits although nobody told of anything: what the spool brought, or
another proxy of the store was asked for.
"""
QUIET_BEFORE_REWRITE_S = 2.0
"""Seconds without another deletion after which the files are rewritten."""
MAX_REWRITE_DELAY_S = 30.0
"""Seconds after which they are, although more keeps coming."""
RETRY_INTERVAL_S = 15.0
"""Seconds after a failure."""


class Forgetter:
    def __init__(self, stores: StoreHandle, archive: str | None) -> None:
        self.stores = stores
        self.place = ArchivePlace(archive) if archive else None
        self.shrink = False
        """The file is to be rewritten although nobody was forgotten: days were dropped."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waiting: list[Erasing] = []
        self._step: c.ForgettingStep = "idle"
        self._last = self._first = time.monotonic()
        self._asked = float("-inf")
        self._not_before = 0.0
        self._error: str | None = None
        self._written: list[Erasing] | None = None
        """Those that the database holds nothing of any more, while archives and spool may."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name="forgetting")]

    async def stop(self) -> None:
        """A rewriting that is under way is given up: the next start begins it again."""
        await end(self._tasks)
        if self.stores.current is not None:
            await in_thread(self.stores.current.db.give_up)

    def turn(self, record: str) -> asyncio.Lock:
        """Held by whoever answers a request to forget or ends one that was cut off, by the name of its record in the
        store: what it taught is taken back once.
        """
        return self._turns.setdefault(record, asyncio.Lock())

    def told(self, gone: Forgotten) -> None:
        """These were forgotten just now."""
        if gone.names:
            now = time.monotonic()
            if not self._waiting:
                self._first = now
            self._last, self._asked = now, float("-inf")
            self._waiting = [*self._waiting, *(Erasing(*name, time.time(), (), ()) for name in gone.names)]
            self._step = "waiting" if self._step == "idle" else self._step

    def progress(self) -> c.Forgetting:
        since = min((e.since for e in self._waiting), default=None)
        return c.Forgetting(episodes=len(self._waiting), since=since, step=self._step, error=self._error)

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception as e:
                self._error = f"{type(e).__name__}: {e}"[:300]
                self._not_before = time.monotonic() + RETRY_INTERVAL_S
                if isinstance(e, StoreError | Problem):
                    log.warning("what was forgotten stays in the files for now: %s", e)
                else:
                    log.exception("what was forgotten stays in the files for now")
                self._step = "waiting"
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self) -> None:
        now = time.monotonic()
        if self.stores.current is None:
            return
        if now >= self._asked + (ASK_SHARED if self.stores.shared else ASK_EVERY):
            self._asked = now
            if self.stores.shared:
                await in_thread(self.stores.current.deletion.alive, time.time())
            self._waiting = await in_thread(self.stores.current.deletion.waiting)
            self._step = "waiting" if self._waiting else "idle"
        due = now >= min(self._last + QUIET_BEFORE_REWRITE_S, self._first + MAX_REWRITE_DELAY_S)
        if (self._waiting or self.shrink) and due and now >= self._not_before:
            await self.erase()

    async def erase(self) -> None:
        """Rewrite the files without what is forgotten. Raises what keeps it from that."""
        store, ingester = self.stores.require(), self.stores.ingester
        self._step, self.shrink = "database", False
        done = self._written if self._written is not None else await in_thread(store.rewrite)
        self._written = done
        self._step = "archives"
        await in_thread(self._rewrite_archives, done)
        self._step = "spool"
        if ingester is not None:
            await in_thread(ingester.blank, [(e.key, mark_of(e.episode)) for e in done])
        await in_thread(store.deletion.erased, done)
        self._written = None
        if done:
            log.info("%d forgotten episodes are out of the files", len(done))
        self._waiting = await in_thread(store.deletion.waiting)
        self._first = time.monotonic()
        self._step, self._error = "waiting" if self._waiting else "idle", None

    def _rewrite_archives(self, done: Sequence[Erasing]) -> None:
        if self.place is None:
            return
        by_file: dict[str, set[Name]] = defaultdict(set)
        for one in done:
            for name in one.archives:
                by_file[name].add((one.key, mark_of(one.episode)))
        for name, names in by_file.items():
            if self.place.has(name):
                forget_archived(self.place, name, names, self.stores.require().instance)
