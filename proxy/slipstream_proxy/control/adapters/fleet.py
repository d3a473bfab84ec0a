"""What other proxies on the same store decide: their adapters are loaded into this proxy's engines, then served."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slipstream.contract import SERVED_STATES, Adapter
from slipstream_proxy.control.adapters.journal import ConcurrentChange
from slipstream_proxy.control.adapters.live_publisher import LivePublisher
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineRefused
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.store_handle import StoreHandle

log = logging.getLogger(__name__)
T = TypeVar("T")
LOAD_ATTEMPTS = 5
TAKE_OVER = 10.0
"""Seconds after which this proxy decides on an adapter that another one is loading: that proxy may have died."""


class Fleet:
    """Without a shared store it does nothing."""

    def __init__(
        self, registry: AdapterRegistry, engines: EnginePool, publisher: LivePublisher, stores: StoreHandle
    ) -> None:
        self.registry, self.engines, self.publisher, self.stores = registry, engines, publisher, stores
        self.followed = time.monotonic()
        """When the store last answered."""
        self.behind: str | None = None
        """The adapter that another proxy made live and this one cannot serve, with the reason."""
        self.take_over = TAKE_OVER
        self._one = asyncio.Lock()

    async def agree(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Decide on what is known now, and again if another proxy changed adapters first. Raises ``Problem`` 503."""
        for _ in range(LOAD_ATTEMPTS):
            await self.follow()
            try:
                return await decide()
            except ConcurrentChange:
                continue
        text = "other proxies change adapters just now, or made one live that this proxy's engines have not loaded yet"
        raise Problem(503, text, fix="ask again", headers={"retry-after": "1"})

    async def follow(self) -> None:
        """Take over what the store says, once this proxy's engines have every adapter that calls will be sent to."""
        store = self.stores.current
        if store is None or not store.shared:
            return
        async with self._one:
            before = self.registry.revision
            try:
                found = await in_thread(store.adapters.since, before)
            except Exception as e:
                log.warning("adapters' states cannot be read, keeping the known ones: %s", e)
                return
            self.followed = time.monotonic()
            if found is None:
                self.behind = None
                return
            revision, adapters = found
            if not all([await self._load(a) for a in self._coming(adapters)]):
                return
            if self.registry.revision != before:  # a change of our own came between: look again
                return
            for a in adapters:
                known = self.registry.items.get(a.name)
                if known is None or known.state != a.state:
                    log.info("the store says: %s is %s", a.name, a.state.value)
            self.registry.adopt(revision, adapters)
            self.behind = None
            self.publisher.publish()

    def _coming(self, found: list[Adapter]) -> list[Adapter]:
        """Those that calls will be sent to, and were not."""
        known = self.registry.items
        return [
            a
            for a in found
            if a.state in SERVED_STATES and (a.name not in known or known[a.name].state not in SERVED_STATES)
        ]

    async def _load(self, adapter: Adapter) -> bool:
        """Into every engine that takes adapters. False: one does not take this, and the old adapters keep serving."""
        errors = await self.engines.load_all(adapter.name, self.registry.files.path_for_engine(adapter))
        if errors and not self.engines.serves(adapter.name):
            behind = f"{adapter.name} is {adapter.state.value} and cannot be loaded here: {errors[0]}"
            if behind != self.behind:
                log.error("another proxy's %s", behind)
            self.behind = behind
            return False
        return True

    def mine(self, adapter: Adapter) -> bool:
        """Whether this proxy decides on an adapter that is loading."""
        waited = time.monotonic() - self.registry.arrived.get(adapter.name, 0.0)
        return not self.stores.shared or adapter.name in self.registry.mine or waited > self.take_over

    def may_refuse(self, adapter: Adapter) -> bool:
        """Whether an engine's refusal counts for the whole fleet: not if this proxy simply lacks the files."""
        return not self.stores.shared or self.registry.files.has_own(adapter)

    def up_to_date(self, seconds: float) -> bool:
        """Whether the store answered recently enough to unload adapters by what it said."""
        return not self.stores.shared or time.monotonic() - self.followed < seconds

    async def bring(self, name: str) -> None:
        """An episode of this adapter comes from another proxy: load it before the call is sent to an engine."""
        registry = self.registry
        if not self.stores.shared or name == registry.base:
            return
        if not registry.servable(name):
            await self.follow()
        if not registry.servable(name) or name in self.engines.loaded():
            return
        registry.pin(name)
        for error in await self.engines.load_all(name, registry.files.path_for_engine(registry.items[name])):
            if isinstance(error, EngineRefused):
                log.error("%s, which a running episode has, cannot be loaded here: %s", name, error)
        self.publisher.publish()
