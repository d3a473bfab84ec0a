"""Runs the gate: reads rewards as they become final, then accepts what is on trial or takes it back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from pydantic import JsonValue

from slipstream.contract import Adapter, AdapterState
from slipstream.shared.backoff import rest
from slipstream_proxy.control.adapters.changes import event
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import ConcurrentChange
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.live_publisher import LivePublisher
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.gate.report import verdict_reason
from slipstream_proxy.control.gate.rules import Decision
from slipstream_proxy.control.gate.suspicion import doubts
from slipstream_proxy.control.gate.verdict import beats_best, is_shown_by_best, worst_group
from slipstream_proxy.control.observe.audit import decided
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import StoreHandle
from slipstream_proxy.store.store import Store

log = logging.getLogger(__name__)
LOOK_PAUSE_S, LOOK_SHARE, MAX_LOOK_PAUSE_S = 0.05, 0.1, 2.0
"""Seconds between two looks, so that a broken adapter meets few users. More if a look takes over ``LOOK_SHARE`` of
that."""
MAX_LOOK_INTERVAL_S = 10.0
"""Seconds between two looks while nothing is heard of rewards: another proxy may have got some."""
SPOOL_SETTLING_S = 2.0
"""Seconds in which what happened gets into the spool, of all proxies."""
OUTCOMES_PER_READ = 500
"""Outcomes read at once, so that calls are not held up."""
KEEP_EVERY = 500
"""Outcomes after which the trial is kept in the store, for a restart."""
PRUNE_EVERY = 20
"""Times that a trial is kept between two looks for outcomes that nobody needs any more."""
REWARDS_CHANGED = "rewards_changed"
"""An event: people say that rewards mean something else from then on."""
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
        mutations: Mutations,
    ) -> None:
        self.registry, self.trials, self.lifecycle, self.fleet = registry, trials, lifecycle, fleet
        self.publisher, self.stores, self.mutations = publisher, stores, mutations
        self.config = registry.config
        self._rewards_changed = asyncio.Event()
        self._deciding = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._unkept: dict[str, int] = {}
        """Model → outcomes read since its trial was kept."""
        self._looked = -MAX_LOOK_INTERVAL_S
        """When held-out runs were last looked at (monotonic)."""
        self._keeps: dict[str, int] = {}
        """Model → how often its trial was kept."""

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name="gate")]

    async def stop(self) -> None:
        await end(self._tasks)
        if (store := self.stores.current) is not None:
            for model in self.registry.models:
                with contextlib.suppress(Exception):  # what is not kept is read again
                    await self._keep(store, model, wait=0)

    def notify(self) -> None:
        """Rewards have changed: look again soon."""
        self._rewards_changed.set()

    async def _run(self) -> None:
        while True:
            await rest(MAX_LOOK_INTERVAL_S, self._rewards_changed)
            self._rewards_changed.clear()
            began = time.monotonic()
            try:
                await self.decide()
            except ConcurrentChange:
                self.notify()
            except Exception:
                log.exception("the gate cannot decide just now")
            await asyncio.sleep(min(max(LOOK_PAUSE_S, (time.monotonic() - began) / LOOK_SHARE), MAX_LOOK_PAUSE_S))

    async def decide(self) -> None:
        """Read what is new, of every model. Each outcome counts once, whoever asks."""
        async with self._deciding:
            if (store := self.stores.current) is not None:
                await self._decide(store)

    async def _decide(self, store: Store) -> None:
        await self.fleet.follow()
        changed = await in_thread(store.events.latest, (REWARDS_CHANGED,))
        held_out = None
        if time.monotonic() - self._looked > MAX_LOOK_INTERVAL_S:
            self._looked, held_out = time.monotonic(), await in_thread(store.statistics.success_by_adapter)
        for model in self.registry.models:
            if model not in self.trials.cursors:
                self.trials.begin(model, *await in_thread(self.trials.read, store, model))
            if changed is not None and changed.at <= time.time() and self.trials.of(model).declare(changed.at):
                await self._keep(store, model)
            while await self._read(store, model):
                pass
            if held_out is not None:
                self.trials.hold_out(model, held_out)
            await self._show(model)
        self.publisher.publish()

    async def _read(self, store: Store, model: str) -> bool:
        """What was written down since, up to the first verdict. → Whether there may be more."""
        due = self.trials.is_due(model, time.time() - SPOOL_SETTLING_S)
        now = await in_thread(self._read_until) if due else 0.0
        found = await in_thread(store.outcomes.since, model, self.trials.cursors[model], OUTCOMES_PER_READ)
        more = len(found) == OUTCOMES_PER_READ
        compared = [outcome.eid for outcome in found if outcome.reward is not None and outcome.chances]
        guards = list(self.config.gate.guards)
        measures = await in_thread(store.outcomes.measures, compared, guards) if compared and guards else {}
        for outcome in found:
            self.trials.feed(model, outcome, measures.get(outcome.eid, {}))
        trial, counted = self.trials.of(model), 0
        # Ends that are not fed yet may be older than now: nobody is late before they are.
        while (run := self.trials.next(model, 0.0 if more else now)) is not None:
            if not run.finished:
                run.groups = self.trials.groups(*await in_thread(store.outcomes.labels, run.eid))
            latched = trial.evidence.latched
            decision = trial.observe(run)
            self.trials.note(model)
            counted += 1
            if decision is not Decision.UNDECIDED and self.config.gate.trial != "manual":
                await self._act(model, decision)
                await self._keep(store, model)
                return True
            if trial.evidence.latched != latched:  # a person decides, also after a restart
                await self._keep(store, model)
        self._unkept[model] = self._unkept.get(model, 0) + counted
        if self._unkept[model] >= KEEP_EVERY:
            await self._keep(store, model)
        return more

    def _read_until(self) -> float:
        """When what happened before is in the store, in seconds since the epoch. Blocks."""
        now, ingester = time.time() - SPOOL_SETTLING_S, self.stores.ingester
        oldest = ingester.backlog()[1] if ingester is not None else 0.0
        return now if oldest is None else min(now, oldest)

    async def _act(self, model: str, decision: Decision) -> None:
        trial, lifecycle = self.trials.of(model), self.lifecycle
        report = self.trials.report(model, decision)
        reason = verdict_reason(trial, self.trials.names(model), decision)
        candidate = self.registry.of(model, S.CANDIDATE)
        if decision is Decision.ROLLBACK_GROUP and (worst := worst_group(trial)) is not None:
            to = self.trials.names(model)[trial.best if is_shown_by_best(trial) else trial.control]
            served = self.registry.served(model)
            assert served is not None  # the base model is worse than nothing
            await lifecycle.take_back_for(served, worst[0], to, reason, report)
        elif decision is Decision.ROLLBACK_BEST:
            await lifecycle.back_to_best(model, reason, report)
        elif candidate is not None and decision is Decision.ROLLBACK:
            await lifecycle.take_back(candidate, reason, report)
        elif candidate is not None:
            await lifecycle.accept(candidate, reason, report, best=beats_best(trial))
        about = candidate.name if candidate is not None else model
        await decided(self.mutations, decision.value, about, {"reason": reason, "control": report.control})
        self.trials.of(model)
        self.publisher.publish()

    async def _keep(self, store: Store, model: str, *, wait: float = 10.0) -> None:
        """``wait``: seconds for the store to take it from the spool; 0: it is read there at the next start."""
        if model not in self.trials.cursors:
            return
        kept, now = self.trials.kept(model), time.time()
        self._unkept[model] = 0
        if (history := self.trials.histories.get(model)) is not None and (taken := history.take()):
            changes = await in_thread(self.trials.history_changes, store, model, taken, now)
            if all([await self.mutations.put("cache", change, wait=wait) for change in changes]):
                history.stored(taken)
        state = await in_thread(self.trials.change, store, model, kept, now)
        if not await self.mutations.put("cache", state, wait=wait):
            return
        self._keeps[model] = keeps = self._keeps.get(model, 0) + 1
        if keeps % PRUNE_EVERY == 0:
            await in_thread(store.outcomes.prune, model, self.trials.counted(model))

    async def _show(self, model: str) -> None:
        """What the gate sees, with the adapter that it is about. Each stage of a canary's plan is written down."""
        shown: Adapter | None = self.registry.of(model, S.CANDIDATE) or self.registry.of(model, S.LIVE)
        if shown is None:
            return
        report, before = self.trials.report(model), shown.gate.stage if shown.gate is not None else None
        shown = shown.model_copy(update={"gate": report})
        if report.stage is None or report.stage == before:
            self.registry.put([shown])
            return
        why = f"{report.own_episodes} of its runs have ended, and nothing speaks against it"
        if before is None:
            why = "it begins" + (", and its replay said nothing against it" if report.stage > 1 else "")
        elif report.stage < before:
            found = doubts(self.trials.of(model)) or ["its evidence began again"]
            why = f"suspicion: {' and '.join(found)}, after {report.own_episodes} of its runs"
        told: dict[str, JsonValue] = {"stage": report.stage, "of": len(self.config.gate.plan)}
        told |= {"share": report.trial_share, "runs": report.own_episodes, "reason": why}
        # kept with the adapter: after a restart, and in another proxy, the same stage is no news
        await self.lifecycle.journal.change([shown], event("canary", adapter=shown.name, **told))
        await decided(self.mutations, "canary", shown.name, {**told, "gets": report.gets})
