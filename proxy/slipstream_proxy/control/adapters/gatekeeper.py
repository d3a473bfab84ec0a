"""Runs the gate: looks at every undecided candidate after new rewards, then accepts it or takes it back."""

from __future__ import annotations

import asyncio
import logging

from slipstream.contract import Adapter, AdapterState, GateReport
from slipstream_proxy.control import gate
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import ConcurrentChange
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.publisher import LivePublisher
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.threads import end, in_thread
from slipstream_proxy.store.protocol import Store

log = logging.getLogger(__name__)
PAUSE = 1.0
"""Seconds between two looks."""
S = AdapterState


class Gatekeeper:
    def __init__(
        self,
        registry: AdapterRegistry,
        lifecycle: AdapterLifecycle,
        fleet: Fleet,
        publisher: LivePublisher,
        stores: StoreHandle,
    ) -> None:
        self.registry, self.lifecycle, self.fleet = registry, lifecycle, fleet
        self.publisher, self.stores = publisher, stores
        self.config = registry.config
        self._rewards_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name="gate")]

    async def stop(self) -> None:
        await end(self._tasks)

    def notify(self) -> None:
        """Rewards have changed: look again soon."""
        self._rewards_changed.set()

    async def _run(self) -> None:
        while True:
            await self._rewards_changed.wait()
            self._rewards_changed.clear()
            try:
                await self.decide()
            except ConcurrentChange:
                self.notify()
            except Exception:
                log.exception("the gate cannot decide just now")
            await asyncio.sleep(PAUSE)

    async def decide(self) -> None:
        """Look at every undecided candidate's rewards once."""
        store = self.stores.current
        if store is None or self.config.gate.mode == "manual":
            return
        await self.fleet.follow()
        for model in self.registry.models:
            candidate = self.registry.of(model, S.CANDIDATE)
            if candidate is not None:
                await self._decide(store, candidate, self.registry.accepted(model))

    async def _decide(self, store: Store, candidate: Adapter, control: str) -> None:
        verdict = await in_thread(self._judge, store, candidate.name, control)
        report = GateReport(control=control, **verdict.numbers())
        if self.registry.items[candidate.name].state != S.CANDIDATE:
            return  # somebody decided meanwhile
        if verdict.decision == "rollback":
            await self.lifecycle.take_back(candidate, f"worse than {control}", report)
        elif verdict.decision == "accept":
            undecided = verdict.evidence_fine < 1 / self.config.gate.alpha
            reason = "undecided for long enough" if undecided else f"not worse than {control}"
            await self.lifecycle.accept(candidate, reason, report)
        else:
            self.registry.put([candidate.model_copy(update={"gate": report})])
        self.publisher.publish()

    def _judge(self, store: Store, candidate: str, control: str) -> gate.Verdict:
        g = self.config.gate
        return gate.judge(
            store.statistics.arm_rewards(candidate, control),
            candidate,
            control,
            alpha=g.alpha,
            min_pairs=g.min_pairs,
            block=self.config.groups.size,
            max_episodes=g.max_episodes,
        )
