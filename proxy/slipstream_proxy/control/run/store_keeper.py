"""Opens the store, fills it from the spool, and opens it again when it could not be opened."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from slipstream.config import Config
from slipstream.contract import Adapter
from slipstream.errors import StartError
from slipstream.shared.backoff import Backoff
from slipstream.shared.hub import vocabulary_of
from slipstream_proxy.control.adapters.changes import event
from slipstream_proxy.control.adapters.journal import AdapterJournal
from slipstream_proxy.control.shared.threads import end, in_thread, settle
from slipstream_proxy.control.storage import identity
from slipstream_proxy.control.storage.ingester import CONTROL_WRITER, Ingester
from slipstream_proxy.control.storage.spool_reader import Item
from slipstream_proxy.control.storage.store_handle import StoreHandle
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.store import open_store
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.schema import NewerSchema
from slipstream_proxy.store.values import Position, Rules

log = logging.getLogger(__name__)
CATCH_UP = 1.0
"""Seconds that a start waits at most for the spool's backlog; the control API serves while the rest is read."""
WATCH_EVERY = 1.0
"""Seconds between looks at whether the store's file is still there."""


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
        judged=tuple(config.judge.names or [config.judge.name]),
        untrained_kinds=frozenset(config.identity.untrained_kinds),
    )


def open_or_none(config: Config) -> Store | None:
    """None: it cannot be opened, not even after a broken file was set aside. Then the spool keeps everything.

    Raises ``StartError`` for a store that a newer program wrote. Without its adapters, all calls would meet the base
    model.
    """
    try:
        store = open_store(
            config.store_url,
            rules_of(config),
            memory_limit=config.store.memory_limit,
            threads=config.store.threads,
            instance=identity.instance_of(config.root),
            archive=config.store.archive,
        )
    except NewerSchema as e:
        raise StartError(str(e)) from e
    except Exception:
        log.exception("the store %s cannot be opened; calls and rewards are kept in the spool", config.store_url)
        return None
    try:
        if store.shared:
            identity.claim(config.root, store)
        again = store.replay_forgettings(identity.forgotten_in(config.root), time.time())
    except Exception as e:
        log.critical("the store is not used: %s", e)
        store.close()
        return None
    if again:
        log.warning("the store is older than %d forgettings: they are forgotten again", again)
    return store


class StoreKeeper:
    """``on_commit(items)`` is awaited in the event loop after each commit."""

    def __init__(
        self,
        config: Config,
        stores: StoreHandle,
        journal: AdapterJournal,
        on_commit: Callable[[Sequence[Item]], Awaitable[None]],
        extend: Callable[[Store], None] | None = None,
    ) -> None:
        """``extend`` gives a store that was opened the plug-ins' tables; it is called in a thread."""
        self.config, self.stores, self.journal, self.on_commit = config, stores, journal, on_commit
        self.extend = extend
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """It is open when this returns. It was filled from the spool for ``CATCH_UP`` seconds; the rest follows."""
        store = await in_thread(open_or_none, self.config)
        if store is not None:
            await self._use(store)
        await in_thread(self._restore)
        self._tasks = [asyncio.create_task(self._watch(), name="store keeper")]

    async def stop(self) -> None:
        """The spool's backlog goes in first."""
        await end(self._tasks)
        if self.stores.ingester:
            await self.stores.ingester.stop()
        await settle()
        if (store := self.stores.current) is not None:
            if store.shared:
                await in_thread(_leave, store)
            await in_thread(store.close)

    def _restore(self) -> None:
        """The adapters' states: those in the store, and those that the spool has since."""
        self.journal.restore()
        store = self.stores.current
        if store is not None and not store.shared:
            self.journal.registry.put(adapters_in_spool(self.config.spool_dir, store.positions().get(CONTROL_WRITER)))

    async def _use(self, store: Store) -> None:
        if self.extend is not None:
            await in_thread(self.extend, store)
        vocabulary = vocabulary_of(self.config.engine.model)
        ingester = Ingester(self.config.spool_dir, store, on_commit=self.on_commit, vocabulary=vocabulary)
        self.stores.replace(store, ingester)
        if store.db.rebuilt:
            log.warning("the store is new: it is filled again from the spool")
        until = time.monotonic() + CATCH_UP
        try:
            await ingester.load_positions()
            if (missing := ingester.stats.missing) is not None:
                log.critical("%s: %s", *missing)
                gone = event("store", text=": ".join(missing))
                await self.journal.mutations.keep("event", gone.model_dump(mode="json"))
            while time.monotonic() < until and await ingester.round():
                pass
        except Exception:
            log.exception("the store takes nothing; the spool keeps everything")
        await ingester.start()

    async def _watch(self) -> None:
        backoff = Backoff(5.0, 60.0)
        while True:
            store = self.stores.current
            if store is None:
                await backoff.sleep()
                await self._reopen()
                continue
            backoff.reset()
            await asyncio.sleep(WATCH_EVERY)
            if await in_thread(store.db.file_missing):
                await self._rescue(store)

    async def _reopen(self) -> None:
        """A disk that was full may have room by now."""
        try:
            store = await in_thread(open_or_none, self.config)
        except StartError as e:
            log.error("%s; calls and rewards are kept in the spool", e)
            return
        if store is None:
            return
        registry = self.journal.registry
        known = list(registry.items.values())
        await self._use(store)
        await in_thread(self._restore)
        if not store.shared:
            registry.put(known)
        log.warning("the store is back")

    async def _rescue(self, store: Store) -> None:
        """Somebody deleted the open file: write it again from what is open, else fill a new one from the spool."""
        log.critical("the store's file was deleted while it was open: writing it again")
        try:
            await in_thread(store.db.put_file_back)
            what = "the store's file was deleted while it was open; it is written again, and nothing is lost"
        except Exception:
            log.exception("the store's file cannot be written again: a new one is filled from the spool")
            ingester = self.stores.ingester
            self.stores.replace(None, None)
            if ingester:
                await ingester.stop()
            await in_thread(store.close)
            await self._reopen()
            what = "the store's file was deleted while it was open; a new one is filled from the spool"
        await self.journal.mutations.keep("event", event("store", text=what).model_dump(mode="json"))


def _leave(store: Store) -> None:
    try:
        store.leave()
    except Exception as e:  # whoever starts this folder elsewhere waits a minute
        log.warning("the database is not told that this proxy stops: %s", e)


def adapters_in_spool(folder: Path, since: Position | None) -> list[Adapter]:
    """Adapters' states in this process's own segments that the store does not have yet, the latest of each."""
    found: dict[str, Adapter] = {}
    for number, path in list_segments(folder).get(CONTROL_WRITER, []):
        if since is not None and number < since.segment:
            continue
        start = since.offset if since is not None and number == since.segment else 0
        for frame in read_segment(path):
            if frame.end > start and frame.kind is Kind.MUTATION and frame.head.get("op") == "adapter":
                adapter = Adapter.model_validate(frame.head["data"])
                found[adapter.name] = adapter
    return list(found.values())
