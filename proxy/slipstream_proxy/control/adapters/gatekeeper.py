"""Runs the gate: reads rewards as they become final, then accepts what is on trial or takes it back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from slipstream.backoff import rest
from slipstream.contract import Adapter, AdapterState
from slipstream_proxy.assignment import tried
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import ConcurrentChange
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.publisher import LivePublisher
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.gate.outcome import outcome_of
from slipstream_proxy.control.gate.report import verdict_reason
from slipstream_proxy.control.gate.rules import Decision
from slipstream_proxy.control.gate.trial import GateTrial
from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.threads import end, in_thread
from slipstream_proxy.store.sqlstore import Store
from slipstream_proxy.store.values import Outcome

log = logging.getLogger(__name__)
PAUSE, PART, MOST_PAUSE = 0.05, 0.1, 2.0
"""Seconds between two looks, so that a broken adapter meets few users. More if a look takes over ``PART`` of that."""
LONGEST = 10.0
"""Seconds between two looks while nothing is heard of rewards: another proxy may have got some."""
READ = 500
"""Outcomes read at once, so that calls are not held up."""
KEEP_EVERY = 500
"""Outcomes after which the trial is kept in the store, for a restart."""
PRUNE_EVERY = 20
"""Times that a trial is kept between two looks for outcomes that nobody needs any more."""
S = AdapterState


class Gatekeeper:
    def __init__(
        self,
        registry: AdapterRegistry,
        trials: GateTrials,
        lifecycle: AdapterLifecycle,
        fleet: Fleet,
        publisher: LivePublisher,
        stores: StoreHandle,
    ) -> None:
        self.registry, self.trials, self.lifecycle, self.fleet = registry, trials, lifecycle, fleet
        self.publisher, self.stores = publisher, stores
        self.config = registry.config
        self._rewards_changed = asyncio.Event()
        self._deciding = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._unkept: dict[str, int] = {}
        """Model → outcomes read since its trial was kept."""
        self._keeps: dict[str, int] = {}
        """Model → how often its trial was kept."""

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name="gate")]

    async def stop(self) -> None:
        await end(self._tasks)
        if (store := self.stores.current) is not None:
            for model in self.registry.models:
                with contextlib.suppress(Exception):  # what is not kept is read again
                    await self._keep(store, model)

    def notify(self) -> None:
        """Rewards have changed: look again soon."""
        self._rewards_changed.set()

    async def _run(self) -> None:
        while True:
            await rest(LONGEST, self._rewards_changed)
            self._rewards_changed.clear()
            began = time.monotonic()
            try:
                await self.decide()
            except ConcurrentChange:
                self.notify()
            except Exception:
                log.exception("the gate cannot decide just now")
            await asyncio.sleep(min(max(PAUSE, (time.monotonic() - began) / PART), MOST_PAUSE))

    async def decide(self) -> None:
        """Read what is new, of every model. Each outcome counts once, whoever asks."""
        async with self._deciding:
            if (store := self.stores.current) is not None:
                await self._decide(store)

    async def _decide(self, store: Store) -> None:
        await self.fleet.follow()
        for model in self.registry.models:
            if model not in self.trials.cursors:
                self.trials.cursors[model], self.trials.trials[model] = await in_thread(self.trials.read, store, model)
            while await self._read(store, model):
                pass
            self._show(model)
        self.publisher.publish()

    async def _read(self, store: Store, model: str) -> bool:
        """A few outcomes, up to the first verdict. → Whether there may be more."""
        found = await in_thread(store.outcomes.since, model, self.trials.cursors[model], READ)
        trial = self.trials.of(model)
        for outcome in found:
            decision = self._observe(model, trial, outcome)
            if decision is not Decision.UNDECIDED and self.config.gate.mode != "manual":
                await self._act(model, decision)
                await self._keep(store, model)
                return True
        self._unkept[model] = self._unkept.get(model, 0) + len(found)
        if self._unkept[model] >= KEEP_EVERY:
            await self._keep(store, model)
        return len(found) == READ

    def _observe(self, model: str, trial: GateTrial, outcome: Outcome) -> Decision:
        self.trials.cursors[model] = outcome.seq
        version = self.trials.version(outcome.adapter)
        name = tried(outcome.chances)
        before = self.trials.version(name) if name is not None else None
        seen = outcome_of(version, outcome.arm, outcome.chances, outcome.task, outcome.reward, before)
        decision = trial.observe(seen)
        self.trials.note(model, outcome.seq, outcome.at)
        return decision

    async def _act(self, model: str, decision: Decision) -> None:
        trial, lifecycle = self.trials.of(model), self.lifecycle
        report = self.trials.report(model, decision)
        reason = verdict_reason(trial, self.trials.names(model), decision)
        candidate = self.registry.of(model, S.CANDIDATE)
        if decision is Decision.ROLLBACK_BEST:
            await lifecycle.back_to_best(model, reason, report)
        elif candidate is not None and decision is Decision.ROLLBACK:
            await lifecycle.take_back(candidate, reason, report)
        elif candidate is not None:
            await lifecycle.accept(candidate, reason, report, best=trial.beats_best())
        self.trials.of(model)
        self.publisher.publish()

    async def _keep(self, store: Store, model: str) -> None:
        if model not in self.trials.cursors:
            return
        kept = self.trials.kept(model)
        self._unkept[model] = 0
        if (history := self.trials.histories.get(model)) is not None and (taken := history.take()):
            await in_thread(self.trials.write_history, store, model, taken, time.time())
            history.stored(taken)
        await in_thread(self.trials.write, store, model, kept, time.time())
        self._keeps[model] = keeps = self._keeps.get(model, 0) + 1
        if keeps % PRUNE_EVERY == 0:
            await in_thread(store.outcomes.prune, model, self.trials.cursors[model])

    def _show(self, model: str) -> None:
        """What the gate sees, with the adapter that it is about."""
        shown: Adapter | None = self.registry.of(model, S.CANDIDATE) or self.registry.of(model, S.LIVE)
        if shown is not None:
            self.registry.put([shown.model_copy(update={"gate": self.trials.report(model)})])
