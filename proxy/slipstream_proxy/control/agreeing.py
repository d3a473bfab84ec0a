"""One word on adapters' states: in memory, durable by mutations; among proxies that share a store, the store's.

There a change counts if no other proxy was first (compare and set of the store's revision), so that one gate decides, whichever proxy it sits in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterState, Event
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.threads import in_thread

if TYPE_CHECKING:
    from slipstream_proxy.store.protocol import Store

log = logging.getLogger(__name__)
S = AdapterState
T = TypeVar("T")
Mutate = Callable[[str, dict[str, Any]], Awaitable[None]]
ATTEMPTS = 5
AWAY = "adapters' states stand in the store that the proxies share, and it takes nothing just now"


class Meanwhile(Exception):
    """Another proxy of the same store was first: what it did is to be learnt before anything is decided."""


def event(kind: str, **data: Any) -> Event:
    return Event(kind=kind, at=time.time(), data=data)


async def _nothing() -> None:
    """Nobody else decides."""


class Agreeing:
    """``mutate(op, data)`` keeps a change durably. All methods belong to the event loop."""

    def __init__(self, config: Config, mutate: Mutate) -> None:
        self.config = config
        self.mutate = mutate
        self.items: dict[str, Adapter] = {}
        self.store: Store | None = None
        self.revision = -1
        """Of the store's adapters, when they were as they are here."""
        self.mine: set[str] = set()
        """Adapters that came to this proxy and are loading: it gives them their part."""
        self.arrived: dict[str, float] = {}
        """When an adapter that is loading came (monotonic)."""
        self.given_up: set[str] = set()
        """Adapters whose episodes have been moved to the live one, to stay within the engine's slots."""
        self.wake = asyncio.Event()
        self.follow: Callable[[], Awaitable[None]] = _nothing
        """Learn what other proxies have decided."""

    @property
    def shared(self) -> bool:
        """Other proxies decide too. (Known from the configuration while the store cannot be opened.)"""
        return self.store.shared if self.store is not None else self.config.store_url.startswith("postgres")

    def restore(self, store: Store | None) -> None:
        """At start: where the last process left off."""
        self.store = store
        if store is not None and (told := store.adapters_since(-1)) is not None:
            self.adopt(*told)
        self.wake.set()

    def adopt(self, revision: int, found: Sequence[Adapter]) -> None:
        """Take over what the store says."""
        for a in found:
            before = self.items.get(a.name)
            if a.state == S.LOADING and (before is None or before.state != S.LOADING):
                self.arrived[a.name] = time.monotonic()
            elif a.state != S.LOADING:
                self.arrived.pop(a.name, None)
                self.mine.discard(a.name)
            if a.state in (S.LOADING, S.LIVE, S.CANDIDATE):
                self.given_up.discard(a.name)
            self.items[a.name] = a.model_copy(update={"loaded": False})
        self.revision = revision

    async def change(self, changed: Sequence[Adapter], *events: Event) -> None:
        """Keep changes that belong together. Raises ``Meanwhile``, and ``Problem`` 503 where a shared store cannot be asked."""
        shared = self.shared
        if shared:
            self.revision = await self._swap(changed, events)
        self.items.update({a.name: a for a in changed})
        for adapter in () if shared else changed:
            await self.mutate("adapter", adapter.model_dump(mode="json"))
        for e in events:
            log.info("%s %s", e.kind, " ".join(f"{k}={v}" for k, v in e.data.items() if k != "numbers"))
            if not shared:
                await self.mutate("event", e.model_dump(mode="json"))
        self.wake.set()

    async def bring_in(self, found: Sequence[Adapter]) -> int:
        """Adapters of another store, with the states they had there. → How many were not here."""
        new = [a for a in found if a.name not in self.items]
        live = {a.model for a in self.items.values() if a.state in (S.LIVE, S.CANDIDATE)}
        if any(a.model in live and a.state in (S.LIVE, S.CANDIDATE) for a in new):
            raise Problem(
                409, "one is live here already", field="body.adapters", fix="import before anything is trained"
            )
        if new:
            await self.change([a.model_copy(update={"loaded": False, "episodes": 0}) for a in new])
        return len(new)

    async def _swap(self, changed: Sequence[Adapter], events: Sequence[Event]) -> int:
        if self.store is None:
            raise Problem(503, AWAY, fix="ask again", headers={"retry-after": "5"})
        try:
            now = await in_thread(self.store.swap_adapters, self.revision, changed, events)
        except Exception as e:
            raise Problem(503, f"{AWAY}: {e}"[:500], fix="ask again", headers={"retry-after": "5"}) from e
        if now is None:
            raise Meanwhile
        return now

    async def agree(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Decide on what is known now, and again if another proxy was first."""
        for _ in range(ATTEMPTS):
            await self.follow()
            try:
                return await decide()
            except Meanwhile:
                continue
        said = "other proxies change adapters just now, or have made one live that this proxy's engines have not loaded yet"
        raise Problem(503, said, fix="ask again", headers={"retry-after": "1"})
