"""Keeps changes of adapters' states durably.

Alone, a change is a mutation in the spool. With a shared store it is a compare-and-set of the store's revision: it
counts if no other proxy was first, so one gate decides, whichever proxy it runs in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from slipstream.contract import Adapter, Event
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.transitions import unexpected
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import RETRY_HEADERS, StoreHandle

log = logging.getLogger(__name__)
STORE_AWAY_TEXT = "the proxies keep adapters' states in their shared store, and it takes no changes just now"


class ConcurrentChange(Exception):
    """Another proxy changed adapters first. Follow the store, then decide again."""


class AdapterJournal:
    def __init__(self, registry: AdapterRegistry, stores: StoreHandle, mutations: Mutations) -> None:
        self.registry = registry
        self.stores = stores
        self.mutations = mutations
        self.wake = asyncio.Event()
        """Set after each change: the swapper looks again."""

    def restore(self) -> None:
        """At start, and after the store came back: the states that it holds. Blocks."""
        store = self.stores.current
        if store is not None and (found := store.adapters.since(-1)) is not None:
            self.registry.adopt(*found)
        self.wake.set()

    async def change(self, changed: Sequence[Adapter], *events: Event, since: int | None = None) -> None:
        """Keep changes that belong together. ``since``: the revision that they were decided at, where that was long
        ago.

        Raises ``ConcurrentChange``, and ``Problem`` 503 if a shared store does not answer.
        """
        shared = self.stores.shared
        if shared:
            if since not in (None, self.registry.revision):
                raise ConcurrentChange
            self.registry.revision = await self._swap(changed, events)
        for change in unexpected(self.registry.items, changed):
            log.error("a change of state that should not be: %s", change)
        self.registry.put(changed)
        for e in events:
            log.info("%s %s", e.kind, " ".join(f"{k}={v}" for k, v in e.data.items() if k != "gate"))
        kept = [] if shared else [("adapter", adapter) for adapter in changed] + [("event", e) for e in events]
        # Spooled in this order, and durable together: one after the other, each would wait for the disk.
        keeping = [asyncio.ensure_future(self.mutations.keep(op, what.model_dump(mode="json"))) for op, what in kept]
        self.wake.set()  # an engine can load meanwhile
        await asyncio.gather(*keeping)

    async def _swap(self, changed: Sequence[Adapter], events: Sequence[Event]) -> int:
        store = self.stores.current
        if store is None:
            raise Problem(503, STORE_AWAY_TEXT, fix="ask again", headers=RETRY_HEADERS)
        try:
            revision = await in_thread(store.adapters.swap, self.registry.revision, changed, events)
        except Exception as e:
            raise Problem(503, f"{STORE_AWAY_TEXT}: {e}"[:500], fix="ask again", headers=RETRY_HEADERS) from e
        if revision is None:
            raise ConcurrentChange
        return revision
