"""Opens the store, fills it from the spool, and opens it again when it could not be opened."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.backoff import Backoff
from slipstream.config import Config
from slipstream_proxy.control.adapters.journal import AdapterJournal
from slipstream_proxy.control.ids import new_id
from slipstream_proxy.control.ingest import Ingester
from slipstream_proxy.control.reading import Item
from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.threads import end, in_thread, settle
from slipstream_proxy.store import open_store
from slipstream_proxy.store.protocol import Rules, Store

log = logging.getLogger(__name__)
CATCH_UP = 60.0
"""Seconds that a start waits at most for the spool's backlog."""


def rules_of(config: Config) -> Rules:
    """The settings that the store's answers depend on."""
    return Rules(
        weights=dict(config.reward.weights),
        credit=config.reward.credit,
        group_size=config.groups.size,
        group_max_age=config.groups.max_age,
        ungrouped=config.groups.ungrouped,
        idle_timeout=config.episodes.idle_timeout,
        orphan_ttl=config.reward.orphan_ttl,
        judge_max_attempts=config.judge.max_attempts,
        window=config.judge.window,
        max_staleness=config.trainer.max_staleness,
        min_groups=config.trainer.min_groups,
    )


def instance_of(root: Path) -> str:
    """Names this proxy's spool among those of others on one PostgreSQL. Made once, kept in the data folder."""
    file = root / "instance"
    if not file.is_file():
        fresh = root / f".instance-{os.getpid()}"
        fresh.write_text(new_id())
        fresh.replace(file)
    return file.read_text().strip()


def open_or_none(config: Config) -> Store | None:
    """None: it cannot be opened, not even after a broken file was set aside. Then the spool keeps everything."""
    try:
        return open_store(
            config.store_url,
            rules_of(config),
            memory_limit=config.store.memory_limit,
            threads=config.store.threads,
            instance=instance_of(config.root),
        )
    except Exception:
        log.exception("the store %s cannot be opened; calls and rewards are kept in the spool", config.store_url)
        return None


class StoreKeeper:
    """``on_commit(items)`` is called in the event loop after each commit."""

    def __init__(
        self,
        config: Config,
        stores: StoreHandle,
        journal: AdapterJournal,
        on_commit: Callable[[Sequence[Item]], None],
    ) -> None:
        self.config, self.stores, self.journal, self.on_commit = config, stores, journal, on_commit
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        store = await in_thread(open_or_none, self.config)
        if store is not None:
            await self._use(store)
        else:
            self._tasks = [asyncio.create_task(self._reopen(), name="reopen")]
        await in_thread(self.journal.restore)

    async def stop(self) -> None:
        """The spool's backlog goes in first."""
        await end(self._tasks)
        if self.stores.ingester:
            await self.stores.ingester.stop()
        await settle()
        if self.stores.current:
            await in_thread(self.stores.current.close)

    async def _use(self, store: Store) -> None:
        ingester = Ingester(self.config.spool_dir, store, on_commit=self.on_commit)
        self.stores.replace(store, ingester)
        await self._catch_up(ingester, store)
        await ingester.start()

    async def _catch_up(self, ingester: Ingester, store: Store) -> None:
        """The spool first: it holds the adapters' states, and everything else if the store is new."""
        if store.rebuilt:
            log.warning("the store is new: it is filled again from the spool")
        until = time.monotonic() + CATCH_UP
        try:
            await ingester.load_positions()
            while time.monotonic() < until and await ingester.round():
                pass
        except Exception:
            log.exception("the store takes nothing; the spool keeps everything")

    async def _reopen(self) -> None:
        """Try again now and then: a disk that was full may have room by now."""
        backoff = Backoff(5.0, 60.0)
        while self.stores.current is None:
            await backoff.sleep()
            store = await in_thread(open_or_none, self.config)
            if store is None:
                continue
            registry = self.journal.registry
            known = list(registry.items.values())
            await self._use(store)
            await in_thread(self.journal.restore)
            if not store.shared:
                registry.put(known)
            log.warning("the store is back")
