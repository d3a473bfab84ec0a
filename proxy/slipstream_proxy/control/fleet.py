"""What other proxies on the same store decide: loaded into this one's engines first, then served."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from slipstream.contract import Adapter, AdapterState
from slipstream_proxy.control.engines import Refused
from slipstream_proxy.control.threads import in_thread

if TYPE_CHECKING:
    from slipstream_proxy.control.swap import Swapper

log = logging.getLogger(__name__)
TAKE_OVER = 10.0
"""Seconds after which an adapter that another proxy is loading gets its part from this one: that proxy may have died."""
ROLES = frozenset({AdapterState.LIVE, AdapterState.CANDIDATE})


class Fleet:
    """Without a shared store all of it does nothing."""

    def __init__(self, swapper: Swapper) -> None:
        self.swapper = swapper
        self.adapters = swapper.adapters
        self.followed = time.monotonic()
        """When the store was last asked, and answered."""
        self.behind: str | None = None
        """What another proxy has made live and this one cannot serve, with the reason."""
        self._one = asyncio.Lock()
        self.take_over = TAKE_OVER
        self.adapters.follow = self.follow

    async def follow(self) -> None:
        """Take over what the store says, once every adapter with a part to play is in this proxy's engines."""
        store = self.adapters.store
        if store is None or not store.shared:
            return
        async with self._one:
            before = self.adapters.revision
            try:
                told = await in_thread(store.adapters_since, before)
            except Exception as e:
                log.warning("adapters' states cannot be read, keeping what was known: %s", e)
                return
            self.followed = time.monotonic()
            if told is None:
                self.behind = None
                return
            if not all([await self._load(a) for a in self._coming(told[1])]):
                return
            if self.adapters.revision != before:  # a change of our own came between: look again
                return
            for a in told[1]:
                known = self.adapters.items.get(a.name)
                if known is None or known.state != a.state:
                    log.info("the store says: %s is %s", a.name, a.state.value)
            self.adapters.adopt(*told)
            self.behind = None
            self.swapper.publish()

    def _coming(self, found: list[Adapter]) -> list[Adapter]:
        """Those that calls will be sent to, and were not."""
        known = self.adapters.items
        return [a for a in found if a.state in ROLES and (a.name not in known or known[a.name].state not in ROLES)]

    async def _load(self, adapter: Adapter) -> bool:
        """Into every engine that is up. False: one of them does not take it; what was served is served on."""
        engines = self.swapper.engines
        path = self.adapters.path_for_engine(adapter)
        up = engines.healthy()
        results = await asyncio.gather(*(engines.load(e, adapter.name, path) for e in up), return_exceptions=True)
        errors = [r for r in results if isinstance(r, BaseException)]
        if errors:
            said = f"{adapter.name} is {adapter.state.value} and cannot be loaded here: {errors[0]}"
            if said != self.behind:
                log.error("another proxy says: %s", said)
            self.behind = said
        return not errors

    def mine(self, adapter: Adapter) -> bool:
        """Whether this proxy gives a loading adapter its part."""
        adapters = self.adapters
        waited = time.monotonic() - adapters.arrived.get(adapter.name, 0.0)
        return not adapters.shared or adapter.name in adapters.mine or waited > self.take_over

    def may_refuse(self, adapter: Adapter) -> bool:
        """An engine's no is the fleet's, unless it only says that the files do not stand where this proxy looks for them."""
        return not self.adapters.shared or self.adapters.has_own(adapter)

    def up_to_date(self, seconds: float) -> bool:
        """Whether what is known of other proxies' adapters is young enough to unload by it."""
        return not self.adapters.shared or time.monotonic() - self.followed < seconds

    async def bring(self, name: str) -> None:
        """An episode of this adapter comes over from another proxy: have it in the engines before its call is sent."""
        adapters, swapper = self.adapters, self.swapper
        if not adapters.shared or name == adapters.base:
            return
        if not adapters.servable(name):
            await self.follow()
        if not adapters.servable(name) or name in swapper.loaded():
            return
        adapters.pins[name] = max(1, adapters.pins.get(name, 0))
        path = adapters.path_for_engine(adapters.items[name])
        engines = swapper.engines
        results = await asyncio.gather(
            *(engines.load(e, name, path) for e in engines.healthy()), return_exceptions=True
        )
        for error in results:
            if isinstance(error, Refused):
                log.error("%s, which a running episode has, cannot be loaded here: %s", name, error)
        swapper.publish()


__all__ = ["Fleet"]
