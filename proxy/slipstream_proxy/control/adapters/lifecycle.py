"""Moves adapters between states: loaded, accepted, promoted by hand, taken back."""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import JsonValue

from slipstream.contract import Adapter, AdapterState, GateReport
from slipstream.operate.adapter_routes import was_the_engines
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import AdapterJournal, event
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.threads import in_thread

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
        self.swaps = 0
        self.rollbacks = 0

    async def activate(self, adapter: Adapter) -> None:
        """Every engine has it: it becomes live or a candidate, by the gate's mode."""
        gate, registry = self.config.gate, self.registry
        started = registry.arrived.get(adapter.name)
        if adapter.forced:
            await self.accept(adapter, "promoted by hand")
        elif gate.mode == "guard" and gate.holdout == 0:
            await self.accept(adapter, "no gate")
        else:
            changed = [adapter.model_copy(update={"state": S.CANDIDATE})]
            if old := registry.of(adapter.model, S.CANDIDATE):
                why = {"reason": f"undecided when {adapter.name} came", "decided": time.time()}
                changed.insert(0, old.model_copy(update={"state": S.RETIRED, **why}))
            control = registry.accepted(adapter.model)
            note = event("adapter", adapter=adapter.name, state="candidate", mode=gate.mode, control=control)
            await self.journal.change(changed, note)
        registry.arrived.pop(adapter.name, None)
        self.swaps += 1
        if started is not None:
            self.observe_swap(time.monotonic() - started)

    async def accept(
        self, adapter: Adapter, reason: str, report: GateReport | None = None, *, best: bool = True
    ) -> Adapter:
        """It is live, and the adapter before it retires. ``best``: slides are measured against it from now on."""
        before = self.registry.of(adapter.model, S.LIVE)
        now = {"state": S.LIVE, "reason": reason, "decided": time.time(), "gate": report or adapter.gate, "best": best}
        adapter = adapter.model_copy(update={**now, "accepted": True, "forced": False})
        changed = [adapter]
        if before and before.name != adapter.name:
            changed.insert(0, before.model_copy(update={"state": S.RETIRED, "reason": f"{adapter.name} is live"}))
        if best:
            changed = self._only_best(adapter, changed)
        was = before.name if before else self.registry.base
        note = event("promote", adapter=adapter.name, before=was, reason=reason, gate=_dumped(report))
        await self.journal.change(changed, note)
        return adapter

    async def take_back(
        self, adapter: Adapter, reason: str, report: GateReport | None = None, state: AdapterState = S.ROLLED_BACK
    ) -> Adapter:
        """Rolled back or refused: the last accepted adapter answers new episodes."""
        back = self.registry.last_accepted(adapter) if adapter.state == S.LIVE else None
        was_best = adapter.best
        update = {"state": state, "reason": reason, "decided": time.time(), "gate": report or adapter.gate}
        adapter = adapter.model_copy(update={**update, "best": False})
        changed = [adapter, *self._descendants(adapter)]
        if back:
            update = {"state": S.LIVE, "reason": f"{adapter.name} was taken back", "best": was_best or back.best}
            changed.append(back.model_copy(update=update))
        kind = "rollback" if state == S.ROLLED_BACK else "refused"
        to = self.registry.live(adapter.model, {**self.registry.items, **{a.name: a for a in changed}})
        note = event(kind, adapter=adapter.name, to=to, reason=reason, gate=_dumped(report))
        await self.journal.change(changed, note)
        self.registry.arrived.pop(adapter.name, None)
        self.rollbacks += state == S.ROLLED_BACK
        if state == S.ROLLED_BACK and (store := self.stores.current) is not None:
            # groups that were sampled from it must not train
            await in_thread(store.batches.drop_adapter, adapter.name)
        return adapter

    async def back_to_best(self, model: str, reason: str, report: GateReport) -> None:
        """Small losses have added up: every later version is taken back, and the best one answers new episodes."""
        registry = self.registry
        to = registry.best(model)
        best = registry.items.get(to)
        since = best.version if best is not None else 0
        served = (S.LIVE, S.CANDIDATE)
        update = {"state": S.ROLLED_BACK, "reason": reason, "decided": time.time(), "accepted": False}
        changed, names = [], []
        for a in registry.items.values():
            if a.model != model or a.version <= since:
                continue
            if a.state in served:
                changed.append(a.model_copy(update={**update, "gate": report}))
                names.append(a.name)
            elif a.state == S.RETIRED and a.accepted:
                changed.append(a.model_copy(update={"accepted": False}))
        if not names:
            return
        newest = max((a for a in changed if a.name in names), key=lambda a: a.version)
        changed += self._descendants(newest)
        if best is not None:
            changed.append(best.model_copy(update={"state": S.LIVE, "reason": f"{newest.name} was taken back"}))
        note = event("rollback", adapter=newest.name, to=to, reason=reason, gate=_dumped(report))
        await self.journal.change(changed, note)
        self.rollbacks += 1
        if (store := self.stores.current) is not None:
            for name in names:
                await in_thread(store.batches.drop_adapter, name)

    def _only_best(self, adapter: Adapter, changed: list[Adapter]) -> list[Adapter]:
        """The changes, with the mark of the best version taken from all others of the model."""
        now = {a.name: a for a in changed}
        for a in self.registry.items.values():
            if a.model == adapter.model and a.best and a.name != adapter.name:
                now[a.name] = now.get(a.name, a).model_copy(update={"best": False})
        return list(now.values())

    def _descendants(self, adapter: Adapter) -> list[Adapter]:
        """Newer versions that wait for the verdict go on from this one, so they go with it."""
        reason = f"made from {adapter.name}, which was taken back"
        update = {"state": S.RETIRED, "reason": reason, "decided": time.time()}
        waiting = self.registry.in_state(S.LOADING)
        newer = (a for a in waiting if a.model == adapter.model and a.version > adapter.version and not a.forced)
        return [a.model_copy(update=update) for a in newer]

    async def replace_waiting(self, adapter: Adapter, newer: Adapter) -> None:
        """It waited for a verdict, and a newer version waits too: only the newest will be tried."""
        update = {"state": S.RETIRED, "reason": f"{newer.name} came while it waited", "decided": time.time()}
        await self.journal.change([adapter.model_copy(update=update)])
        self.registry.arrived.pop(adapter.name, None)

    async def promote(self, which: str, reason: str | None) -> Adapter:
        """By hand. Raises ``Problem``: there is none such (404), it cannot be served (409)."""
        return await self.fleet.agree(lambda: self._promote(which, reason))

    async def _promote(self, which: str, reason: str | None) -> Adapter:
        adapter = self.registry.find(which)
        if adapter.state == S.LIVE:
            return adapter
        if adapter.state == S.CANDIDATE:
            return await self.accept(adapter, reason or "promoted by hand")
        if not self.registry.files.exist(adapter):
            text = f"{adapter.name} cannot be served: its files are gone from {self.registry.files.folder(adapter)}"
            fix = "put its folder back, or promote another version; adapters.keep says how many stay on disk"
            raise Problem(409, text, field="path.adapter", fix=fix)
        if adapter.state == S.REFUSED and not was_the_engines(adapter.reason, adapter.name):
            text, fix = f"{adapter.name} cannot be served: {adapter.reason}", "publish it again under the next number"
            raise Problem(409, text, field="path.adapter", fix=fix)
        self.registry.expect(adapter)
        adapter = adapter.model_copy(update={"state": S.LOADING, "reason": reason, "forced": True})
        await self.journal.change([adapter])
        return adapter

    async def rollback(self, which: str, reason: str | None) -> Adapter:
        """By hand. Raises ``Problem``: there is none such (404), it does not serve (409)."""
        return await self.fleet.agree(lambda: self._rollback(which, reason))

    async def _rollback(self, which: str, reason: str | None) -> Adapter:
        adapter = self.registry.find(which)
        if adapter.state in (S.CANDIDATE, S.LIVE, S.LOADING):
            return await self.take_back(adapter, reason or "taken back by hand")
        text = f"{adapter.name} is {adapter.state.value}: there is nothing to take back"
        raise Problem(409, text, field="path.adapter")


def _dumped(report: GateReport | None) -> dict[str, JsonValue] | None:
    return report.model_dump(mode="json") if report is not None else None
