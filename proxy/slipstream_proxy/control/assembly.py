"""Makes the control plane's objects and hands each the collaborators that it needs."""

from __future__ import annotations

from slipstream.config import Config
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.gatekeeper import Gatekeeper
from slipstream_proxy.control.adapters.journal import AdapterJournal
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.publisher import LivePublisher
from slipstream_proxy.control.adapters.registrar import AdapterRegistrar
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.swapper import Swapper
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.engine_lease import EngineLease
from slipstream_proxy.control.engines import EnginePool
from slipstream_proxy.control.forgetter import Forgetter
from slipstream_proxy.control.ids import new_id
from slipstream_proxy.control.judge_board import JudgeBoard
from slipstream_proxy.control.live import LiveState
from slipstream_proxy.control.metrics import ControlMetrics
from slipstream_proxy.control.mutations import Mutations
from slipstream_proxy.control.pin_queue import PinQueue
from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.store_health import StoreHealth, probe_of
from slipstream_proxy.control.token_text import TokenTexter
from slipstream_proxy.spool import SpoolWriter


def assemble(config: Config, writer: SpoolWriter) -> Deps:
    """Nothing runs yet, and no store is open."""
    stores = StoreHandle(config.store_url)
    health = StoreHealth(probe_of(config.store_url))
    mutations = Mutations(writer, stores, new_id, health.check)
    metrics = ControlMetrics()
    live = LiveState(config.root / "live.json")
    registry = AdapterRegistry(config)
    journal = AdapterJournal(registry, stores, mutations)
    engine = config.engine
    engines = EnginePool(engine.urls, engine.api_key, registry.wanted, registry.paths_of, engine.health_interval)
    trials = GateTrials(registry, engines.serves)
    publisher = LivePublisher(registry, trials, engines, live)
    engines.noticed = publisher.publish
    lease = EngineLease(engines, live, publisher.publish, shared=engine.share)
    fleet = Fleet(registry, engines, publisher, stores)
    lifecycle = AdapterLifecycle(registry, journal, fleet, stores, metrics.swap_seconds.observe)
    return Deps(
        config=config,
        stores=stores,
        mutations=mutations,
        live=live,
        registry=registry,
        journal=journal,
        lifecycle=lifecycle,
        registrar=AdapterRegistrar(registry, journal, fleet),
        fleet=fleet,
        trials=trials,
        gatekeeper=Gatekeeper(registry, trials, lifecycle, fleet, publisher, stores),
        engines=engines,
        lease=lease,
        publisher=publisher,
        swapper=Swapper(registry, trials, journal, lifecycle, fleet, engines, lease, publisher, stores),
        metrics=metrics,
        health=health,
        judges=JudgeBoard(config.judge.name, config.judge.names),
        texter=TokenTexter(config),
        forgetter=Forgetter(stores, config.store.archive),
        pins=PinQueue(stores),
    )
