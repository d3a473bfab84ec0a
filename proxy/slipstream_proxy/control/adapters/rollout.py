"""The one owner of all that moves an adapter from its registration to its last call."""

from __future__ import annotations

from collections.abc import Callable

from slipstream_proxy.control.adapters.checks import AdapterChecks
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.gatekeeper import Gatekeeper
from slipstream_proxy.control.adapters.journal import AdapterJournal
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.live_publisher import LivePublisher
from slipstream_proxy.control.adapters.registrar import AdapterRegistrar
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.rehearsal import RehearsalSlot
from slipstream_proxy.control.adapters.swapper import Swapper
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.engines.engine_lease import EngineLease
from slipstream_proxy.control.engines.live import LiveState
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import StoreHandle


class Rollout:
    """An adapter is registered, loaded, tried, live, and then retired or taken back (``transitions``): ``registrar``
    takes it in, ``swapper`` loads and unloads, ``gatekeeper`` decides by ``trials``, ``lifecycle`` changes its state,
    ``journal`` keeps the change, ``publisher`` tells the data planes, ``fleet`` follows other proxies. No part makes
    another one, or knows of one that is made after it.

    ``observe_swap(seconds)`` is called once for each adapter: from its registration until it serves.
    """

    def __init__(
        self,
        registry: AdapterRegistry,
        checks: AdapterChecks,
        rehearsals: RehearsalSlot,
        engines: EnginePool,
        lease: EngineLease,
        live: LiveState,
        stores: StoreHandle,
        mutations: Mutations,
        observe_swap: Callable[[float], None],
    ) -> None:
        self.registry, self.rehearsals, self.engines = registry, rehearsals, engines
        self.trials = trials = GateTrials(registry, engines.serves)
        self.publisher = publisher = LivePublisher(registry, trials, engines, live)
        self.journal = journal = AdapterJournal(registry, stores, mutations)
        self.fleet = fleet = Fleet(registry, engines, publisher, stores)
        self.lifecycle = lifecycle = AdapterLifecycle(registry, journal, fleet, stores, observe_swap)
        self.registrar = AdapterRegistrar(registry, journal, fleet, checks)
        self.gatekeeper = Gatekeeper(registry, trials, lifecycle, fleet, publisher, stores, mutations)
        self.swapper = Swapper(
            registry, trials, journal, lifecycle, fleet, engines, lease, publisher, stores, rehearsals
        )

    async def start(self) -> None:
        await self.swapper.start()
        self.gatekeeper.start()
        self.gatekeeper.notify()

    async def leave(self) -> None:
        """Unload all: this proxy ends for good, and another one may come under its name."""
        for name in [name for name in self.engines.loaded() if name in self.registry.items]:
            await self.engines.unload(name)

    async def stop(self) -> None:
        await self.gatekeeper.stop()
        await self.swapper.stop()
