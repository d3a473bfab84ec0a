"""Writes the live state: what each trained model's new episodes get, and which engines are up."""

from __future__ import annotations

from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.engines import EnginePool
from slipstream_proxy.control.live import LiveState, ModelLive


class LivePublisher:
    def __init__(self, registry: AdapterRegistry, trials: GateTrials, engines: EnginePool, live: LiveState) -> None:
        self.registry, self.trials, self.engines, self.live = registry, trials, engines, live

    def publish(self) -> None:
        """Send the data planes what is true now. Nothing happens if nothing changed."""
        r = self.registry
        models = {m: ModelLive(r.base, r.live(m), self.trials.arms(m)) for m in r.models}
        self.live.set(models, self.engines.public())
