"""Moves adapters between states: loaded, accepted, promoted by hand, taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from slipstream.contract import Action, Adapter, AdapterState, GateReport
from slipstream_proxy.control.adapters.changes import Change, StateChanges, dumped, event, gone, made_from, retired
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import AdapterJournal
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.store_handle import StoreHandle

S = AdapterState


class AdapterLifecycle:
    """``observe_swap(seconds)`` is called once for each adapter: from its registration until it serves."""

    def __init__(
        self,
        registry: AdapterRegistry,
        journal: AdapterJournal,
        fleet: Fleet,
        stores: StoreHandle,
        observe_swap: Callable[[float], None],
    ) -> None:
        self.registry, self.journal, self.fleet, self.stores = registry, journal, fleet, stores
        self.observe_swap = observe_swap
        self.config = registry.config
        self.changes = StateChanges(registry)
        self.swaps = 0
        self.rollbacks = 0

    async def activate(self, adapter: Adapter) -> None:
        """Every engine has it: it becomes live or a candidate, by the gate's mode."""
        gate, registry = self.config.gate, self.registry
        if registry.fallen(adapter.name):
            await self.drop_fallen()
            return
        started = registry.arrived.get(adapter.name)
        if not adapter.forced:
            adapter = adapter.model_copy(update={"kept_from": self._inherited(adapter)})
        if adapter.forced:
            await self._make(self.changes.accept_by_hand(adapter, adapter.reason))
        elif gate.trial == "guard" and gate.holdout == 0:
            await self.accept(adapter, "no gate")
        else:
            changed = [adapter.model_copy(update={"state": S.CANDIDATE})]
            if old := registry.of(adapter.model, S.CANDIDATE):
                changed.insert(0, retired(old, f"undecided when {adapter.name} came"))
            control = registry.accepted(adapter.model)
            note = event("adapter", adapter=adapter.name, state="candidate", mode=gate.mode, control=control)
            await self.journal.change(changed, note)
        registry.arrived.pop(adapter.name, None)
        self.swaps += 1
        if started is not None:
            self.observe_swap(time.monotonic() - started)

    async def _make(self, change: Change) -> Adapter:
        """Keep it. Groups that were sampled from what is taken back must not train."""
        for a in change.changed:
            if a.state == S.LOADING:
                self.registry.expect(a)
        await self.journal.change(change.changed, *change.events)
        taken = [a for a in change.changed if a.state == S.ROLLED_BACK]
        self.rollbacks += bool(taken) or any(e.kind == "rollback" and "group" in e.data for e in change.events)
        for a in change.changed:
            if a.state != S.LOADING:
                self.registry.arrived.pop(a.name, None)
        if (store := self.stores.current) is not None:
            for a in taken:
                await in_thread(store.batches.drop_adapter, a.name)
        return change.adapter

    async def accept(
        self, adapter: Adapter, reason: str, report: GateReport | None = None, *, best: bool = True
    ) -> Adapter:
        """By the gate: it is live, and the adapter before it retires. ``best``: slides are measured against it from now
        on. What was made from a version that was taken back is taken back instead.
        """
        if report is not None and (taken := self.registry.fallen(adapter.name)):
            return await self.take_back(adapter, made_from(taken), report)
        return await self._make(self.changes.accept(adapter, reason, report, best=best))

    async def take_back(
        self, adapter: Adapter, reason: str, report: GateReport | None = None, state: AdapterState = S.ROLLED_BACK
    ) -> Adapter:
        """Rolled back or refused: the last accepted adapter answers new episodes."""
        return await self._make(self.changes.take_back(adapter, reason, report, state))

    async def take_back_for(self, adapter: Adapter, group: str, to: str, reason: str, report: GateReport) -> Adapter:
        """For one group of runs alone: its new runs get ``to``, and all others go on as before."""
        return await self._make(self.changes.take_back_for(adapter, group, to, reason, report))

    def _inherited(self, adapter: Adapter) -> dict[str, str]:
        """Groups that do not get it either: those of the live version, and of the one that it was made from. A group
        that a person gave that one gets it.
        """
        registry = self.registry
        live, tried = registry.of(adapter.model, S.LIVE), registry.of(adapter.model, S.CANDIDATE)
        parent = registry.items.get(adapter.parent or "") or tried
        given = parent.given if parent is not None else []
        kept = {group: to for a in (live, parent) if a is not None for group, to in a.kept_from.items()}
        return {group: to for group, to in kept.items() if group not in given}

    async def anew(self, model: str, names: Collection[str], reason: str) -> None:
        """None of these versions serves any more. The trainer goes on from what is live then."""

        async def end() -> None:
            if change := self.changes.anew(model, names, reason):
                await self._make(change)

        await self.fleet.agree(end)

    async def drop_fallen(self) -> None:
        """What waits or is tried, and was made from a version that was taken back, goes with it."""
        served = self.registry.in_state(S.LOADING, S.CANDIDATE)
        ended = [gone(a, taken) for a in served if (taken := self.registry.fallen(a.name))]
        if not ended:
            return
        now = {**self.registry.items, **{a.name: a for a in ended}}
        told = [event("rollback", adapter=a.name, to=self.registry.live(a.model, now), reason=a.reason) for a in ended]
        await self._make(Change(ended[0], ended, told))

    async def back_to_best(self, model: str, reason: str, report: GateReport) -> None:
        """Small losses have added up: every later version is taken back, and the best one answers new episodes."""
        registry = self.registry
        to = registry.best(model)
        best = registry.items.get(to)
        since = best.version if best is not None else 0
        update = {"state": S.ROLLED_BACK, "reason": reason, "decided": time.time(), "accepted": False, "frozen": None}
        changed, names = [], []
        for a in registry.items.values():
            if a.model != model or a.version <= since:
                continue
            if a.state in (S.LIVE, S.CANDIDATE):
                changed.append(a.model_copy(update={**update, "gate": report}))
                names.append(a.name)
            elif a.state == S.RETIRED and a.accepted:
                changed.append(a.model_copy(update={"accepted": False}))
        if not names:
            return
        newest = max((a for a in changed if a.name in names), key=lambda a: a.version)
        changed += self.changes.descendants(changed, newest)
        if best is not None:
            changed.append(best.model_copy(update={"state": S.LIVE, "reason": f"{newest.name} was taken back"}))
        note = event("rollback", adapter=newest.name, to=to, reason=reason, gate=dumped(report))
        await self._make(Change(newest, changed, [note]))

    async def replace_waiting(self, adapter: Adapter, newer: Adapter) -> None:
        """It waited for a verdict, and a newer version waits too: only the newest will be tried."""
        update = {"state": S.RETIRED, "reason": f"{newer.name} came while it waited", "decided": time.time()}
        adapter = adapter.model_copy(update=update)
        await self._make(Change(adapter, [adapter], []))

    async def by_hand(self, which: str, action: Action, reason: str | None = None, group: str | None = None) -> Adapter:
        """A person promotes, demotes, freezes or unfreezes a version. ``group``: for this group of runs alone. Raises
        ``Problem``: there is none such (404), it cannot be done (409).
        """
        return await self.fleet.agree(lambda: self._by_hand(which, action, reason, group))

    async def _by_hand(self, which: str, action: Action, reason: str | None, group: str | None) -> Adapter:
        adapter = self.registry.find(which)
        for change in self.changes.by_hand(adapter, action, reason, group):
            await self._make(change)
        return self.registry.items[adapter.name]
