"""Changes of adapters, written down and published.

Writes the live state: what each trained model's new episodes get, and which engines are up.

Changes of adapters' states, kept durably.

Alone, a change is a mutation in the spool. With a shared store it is a compare-and-set of the store's revision: it
counts if no other proxy was first, so one gate decides, whichever proxy it runs in.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from slipstream.contract import Adapter, Event
from slipstream.contract import AdapterState as S
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.engines.live import LiveState, ModelLive
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import RETRY, StoreHandle

if TYPE_CHECKING:
    from slipstream_proxy.control.adapters.trials import GateTrials

MOST_GONE = 256


class LivePublisher:
    def __init__(self, registry: AdapterRegistry, trials: GateTrials, engines: EnginePool, live: LiveState) -> None:
        self.registry, self.trials, self.engines, self.live = registry, trials, engines, live

    def publish(self) -> None:
        """Send the data planes what is true now. Nothing happens if nothing changed."""
        r = self.registry
        models = {m: ModelLive(r.base, r.live(m), self.trials.arms(m), r.kept_from(m)) for m in r.models}
        self.live.set(models, self.engines.public(), self._gone())

    def _gone(self) -> dict[str, tuple[str, float]]:
        """The newest versions that serve no more → state, and since when. A retired one ended when the next went
        live.
        """
        newest = sorted(self.registry.items.values(), key=lambda a: a.version)[-MOST_GONE:]
        began = sorted((a.model, a.decided) for a in newest if a.accepted and a.decided)
        found = {}
        for a in newest:
            at = a.decided or a.created
            if a.state == S.RETIRED and a.accepted:
                after = bisect.bisect_right(began, (a.model, at))
                at = began[after][1] if after < len(began) and began[after][0] == a.model else at
            if a.state in (S.RETIRED, S.ROLLED_BACK, S.REFUSED):
                found[a.name] = (a.state.value, at)
        return found


log = logging.getLogger(__name__)
AWAY = "the proxies keep adapters' states in their shared store, and it takes no changes just now"


class ConcurrentChange(Exception):
    """Another proxy changed adapters first. Follow the store, then decide again."""


def event(kind: str, **data: JsonValue) -> Event:
    return Event(kind=kind, at=time.time(), data=data)


def made_from(taken: str) -> str:
    """The reason of a version that goes with the one that it was made from."""
    return f"made from {taken}, which was taken back"


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

    async def change(self, changed: Sequence[Adapter], *events: Event) -> None:
        """Keep changes that belong together.

        Raises ``ConcurrentChange``, and ``Problem`` 503 if a shared store does not answer.
        """
        shared = self.stores.shared
        if shared:
            self.registry.revision = await self._swap(changed, events)
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
            raise Problem(503, AWAY, fix="ask again", headers=RETRY)
        try:
            revision = await in_thread(store.adapters.swap, self.registry.revision, changed, events)
        except Exception as e:
            raise Problem(503, f"{AWAY}: {e}"[:500], fix="ask again", headers=RETRY) from e
        if revision is None:
            raise ConcurrentChange
        return revision
