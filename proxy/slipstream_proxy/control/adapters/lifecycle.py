"""Moves adapters between states: loaded, accepted, promoted by hand, taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pydantic import JsonValue

from slipstream.contract import Action, Adapter, AdapterState, GateReport, fallen
from slipstream.engines import was_the_engines
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import AdapterJournal, event, made_from
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.store_handle import StoreHandle

S = AdapterState
BY_HAND = "promoted by hand"


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
        if registry.fallen(adapter.name):
            await self.drop_fallen()
            return
        started = registry.arrived.get(adapter.name)
        if not adapter.forced:
            adapter = adapter.model_copy(update={"kept_from": self._inherited(adapter)})
        if adapter.forced:
            await self._accept_by_hand(adapter, adapter.reason)
        elif gate.trial == "guard" and gate.holdout == 0:
            await self.accept(adapter, "no gate")
        else:
            changed = [adapter.model_copy(update={"state": S.CANDIDATE})]
            if old := registry.of(adapter.model, S.CANDIDATE):
                changed.insert(0, _retired(old, f"undecided when {adapter.name} came"))
            control = registry.accepted(adapter.model)
            note = event("adapter", adapter=adapter.name, state="candidate", mode=gate.mode, control=control)
            await self.journal.change(changed, note)
        registry.arrived.pop(adapter.name, None)
        self.swaps += 1
        if started is not None:
            self.observe_swap(time.monotonic() - started)

    async def accept(
        self,
        adapter: Adapter,
        reason: str,
        report: GateReport | None = None,
        *,
        best: bool = True,
        ended: Sequence[Adapter] = (),
    ) -> Adapter:
        """It is live, and the adapter before it retires. ``best``: slides are measured against it from now on.
        ``ended``: other adapters whose trial ends with that, as they will be.

        By the gate alone: what was made from a version that was taken back is taken back instead.
        """
        if report is not None and (taken := self.registry.fallen(adapter.name)):
            return await self.take_back(adapter, made_from(taken), report)
        before = self.registry.of(adapter.model, S.LIVE)
        now = {
            "state": S.LIVE,
            "reason": reason,
            "decided": time.time(),
            "gate": report or _closed(adapter.gate, reason),
            "best": best,
        }
        adapter = adapter.model_copy(update={**now, "accepted": True, "forced": False, "frozen": None})
        changed = [*ended, adapter]
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
        update = {
            "state": state,
            "reason": reason,
            "decided": time.time(),
            "gate": report or _closed(adapter.gate, reason),
        }
        adapter = adapter.model_copy(update={**update, "best": False, "forced": False})
        changed = [adapter]
        if state == S.ROLLED_BACK or adapter.failed_replay:
            changed += self._descendants(changed, adapter)
        if back:
            update = {"state": S.LIVE, "reason": f"{adapter.name} was taken back", "best": was_best or back.best}
            changed.append(back.model_copy(update=update))
        kind = "rollback" if state == S.ROLLED_BACK else "refused"
        to = self.registry.live(adapter.model, {**self.registry.items, **{a.name: a for a in changed}})
        note = event(kind, adapter=adapter.name, to=to, reason=reason, gate=_dumped(report))
        await self.journal.change(changed, note)
        self.registry.arrived.pop(adapter.name, None)
        self.rollbacks += state == S.ROLLED_BACK
        await self._drop_groups(changed)
        return adapter

    async def take_back_for(
        self, adapter: Adapter, group: str, to: str, reason: str, report: GateReport | None = None
    ) -> Adapter:
        """For one group of runs alone: its new runs get ``to``, and all others go on as before."""
        adapter = adapter.model_copy(update={"kept_from": {**adapter.kept_from, group: to}, "reason": reason})
        note = event("rollback", adapter=adapter.name, group=group, to=to, reason=reason, gate=_dumped(report))
        await self.journal.change([adapter], note)
        self.rollbacks += 1
        return adapter

    def _inherited(self, adapter: Adapter) -> dict[str, str]:
        """Groups that do not get it either: those of the live version, and of the one that it was made from."""
        registry = self.registry
        live, tried = registry.of(adapter.model, S.LIVE), registry.of(adapter.model, S.CANDIDATE)
        parent = registry.items.get(adapter.parent or "") or tried
        return {group: to for a in (live, parent) if a is not None for group, to in a.kept_from.items()}

    async def drop_fallen(self) -> None:
        """What waits or is tried, and was made from a version that was taken back, goes with it."""
        served = self.registry.in_state(S.LOADING, S.CANDIDATE)
        gone = [_gone(a, taken) for a in served if (taken := self.registry.fallen(a.name))]
        if not gone:
            return
        now = {**self.registry.items, **{a.name: a for a in gone}}
        told = [event("rollback", adapter=a.name, to=self.registry.live(a.model, now), reason=a.reason) for a in gone]
        await self.journal.change(gone, *told)
        for a in gone:
            self.registry.arrived.pop(a.name, None)
        self.rollbacks += any(a.state == S.ROLLED_BACK for a in gone)
        await self._drop_groups(gone)

    async def _drop_groups(self, changed: list[Adapter]) -> None:
        """Groups that were sampled from what is taken back must not train."""
        if (store := self.stores.current) is not None:
            for a in changed:
                if a.state == S.ROLLED_BACK:
                    await in_thread(store.batches.drop_adapter, a.name)

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
        changed += self._descendants(changed, newest)
        if best is not None:
            changed.append(best.model_copy(update={"state": S.LIVE, "reason": f"{newest.name} was taken back"}))
        note = event("rollback", adapter=newest.name, to=to, reason=reason, gate=_dumped(report))
        await self.journal.change(changed, note)
        self.rollbacks += 1
        await self._drop_groups(changed)

    def _only_best(self, adapter: Adapter, changed: list[Adapter]) -> list[Adapter]:
        """The changes, with the mark of the best version taken from all others of the model."""
        now = {a.name: a for a in changed}
        for a in self.registry.items.values():
            if a.model == adapter.model and a.best and a.name != adapter.name:
                now[a.name] = now.get(a.name, a).model_copy(update={"best": False})
        return list(now.values())

    def _descendants(self, changed: list[Adapter], adapter: Adapter) -> list[Adapter]:
        """Versions that wait or are tried go with the one that they were made from, once ``changed`` counts.

        Where nobody said what a waiting one was made from, it counts as made from ``adapter``.
        """
        ours = {a.name: a for a in changed}
        now = {**self.registry.items, **ours}
        found = []
        for a in self.registry.in_state(S.LOADING, S.CANDIDATE):
            unknown = a.parent is None and a.state == S.LOADING and not a.forced and a.version > adapter.version
            taken = adapter.name if unknown and a.model == adapter.model else fallen(now, a.name)
            if taken and a.name not in ours:
                found.append(_gone(a, taken))
        return found

    async def replace_waiting(self, adapter: Adapter, newer: Adapter) -> None:
        """It waited for a verdict, and a newer version waits too: only the newest will be tried."""
        update = {"state": S.RETIRED, "reason": f"{newer.name} came while it waited", "decided": time.time()}
        await self.journal.change([adapter.model_copy(update=update)])
        self.registry.arrived.pop(adapter.name, None)

    async def promote(self, which: str, reason: str | None, group: str | None = None) -> Adapter:
        """By hand. ``group``: it is given back to this group alone. Raises ``Problem``: there is none such (404), it
        cannot be served (409).
        """
        return await self.fleet.agree(lambda: self._promote(which, reason, group))

    async def _promote(self, which: str, reason: str | None, group: str | None) -> Adapter:
        adapter = self.registry.find(which)
        if group is not None:
            return await self._give_back(adapter, group, reason)
        tried = self.registry.of(adapter.model, S.CANDIDATE)
        if adapter.state == S.LIVE:
            if tried is not None:
                await self.take_back(tried, f"{adapter.name} was kept by hand")
            if not adapter.best:  # by hand is final: slides are measured against it from now on
                return await self.accept(adapter.model_copy(update={"kept_from": {}}), reason or BY_HAND)
            if adapter.kept_from:  # all runs get it
                adapter = adapter.model_copy(update={"kept_from": {}, "reason": reason or BY_HAND})
                await self.journal.change([adapter])
            return adapter
        if adapter.state == S.CANDIDATE:
            return await self._accept_by_hand(adapter, reason)
        if not self.registry.files.exist(adapter):
            text = f"{adapter.name} cannot be served: its files are gone from {self.registry.files.folder(adapter)}"
            fix = "put its folder back, or promote another version; adapters.keep says how many stay on disk"
            raise Problem(409, text, field="path.adapter", fix=fix)
        by_engine = adapter.state == S.REFUSED and not adapter.failed_replay
        if by_engine and not was_the_engines(adapter.reason, adapter.name):
            text, fix = f"{adapter.name} cannot be served: {adapter.reason}", "publish it again under the next number"
            raise Problem(409, text, field="path.adapter", fix=fix)
        self.registry.expect(adapter)
        reason = f"{reason or BY_HAND}: it goes live when it is loaded"
        if tried is not None:
            reason += f", and the trial of {tried.name} ends"
        adapter = adapter.model_copy(update={"state": S.LOADING, "reason": reason, "forced": True})
        await self.journal.change([adapter])
        return adapter

    async def _accept_by_hand(self, adapter: Adapter, reason: str | None) -> Adapter:
        """By hand is final: what is on trial ends. A newer one is taken back, with what was made from it."""
        reason = (reason or BY_HAND).split(": it goes live", 1)[0]
        adapter = adapter.model_copy(update={"kept_from": {}})
        tried = self.registry.of(adapter.model, S.CANDIDATE)
        if tried is None or tried.name == adapter.name:
            return await self.accept(adapter, reason)
        why = f"{adapter.name} was promoted by hand"
        ended = _retired(tried, why)
        if tried.version < adapter.version:
            return await self.accept(adapter, f"{reason}; the trial of {tried.name} ended", ended=[ended])
        ended = ended.model_copy(update={"state": S.ROLLED_BACK, "best": False})
        made = self._descendants([ended, adapter], tried)
        adapter = await self.accept(adapter, f"{reason}; {tried.name} was taken back", ended=[ended, *made])
        self.rollbacks += 1
        if (store := self.stores.current) is not None:
            await in_thread(store.batches.drop_adapter, tried.name)
        return adapter

    async def demote(self, which: str, reason: str | None, group: str | None = None) -> Adapter:
        """By hand. ``group``: for this group alone. Raises ``Problem``: there is none such (404), it does not serve
        (409).
        """
        return await self.fleet.agree(lambda: self._demote(which, reason, group))

    async def _demote(self, which: str, reason: str | None, group: str | None) -> Adapter:
        adapter = self.registry.find(which)
        if group is not None:
            to = self._without(self._served(adapter))
            text = f"taken back for {group} by hand: its new runs get {to}"
            return await self.take_back_for(adapter, group, to, f"{reason}; {text}" if reason else text)
        if adapter.state in (S.CANDIDATE, S.LIVE, S.LOADING):
            return await self.take_back(adapter, reason or "taken back by hand")
        text = f"{adapter.name} is {adapter.state.value}: there is nothing to take back"
        raise Problem(409, text, field="path.adapter")

    async def _give_back(self, adapter: Adapter, group: str, reason: str | None) -> Adapter:
        if group not in self._served(adapter).kept_from:
            known = ", ".join(adapter.kept_from) or "none"
            text = f"{adapter.name} was not taken back for {group} alone"
            raise Problem(409, text, field="body.group", fix=f"the groups that it was taken back for: {known}")
        kept_from = {name: to for name, to in adapter.kept_from.items() if name != group}
        reason = f"{reason or BY_HAND}: given back to {group}"
        adapter = adapter.model_copy(update={"kept_from": kept_from, "reason": reason})
        await self.journal.change([adapter], event("promote", adapter=adapter.name, group=group, reason=reason))
        return adapter

    def _served(self, adapter: Adapter) -> Adapter:
        """The same. Raises ``Problem`` 409 where new runs do not get it."""
        if adapter.state in (S.CANDIDATE, S.LIVE):
            return adapter
        text = f"{adapter.name} is {adapter.state.value.replace('_', ' ')}: no new run gets it"
        raise Problem(409, text, field="path.adapter", fix="name the version on trial, or the live one")

    def _without(self, adapter: Adapter) -> str:
        """What new runs get if it is taken back."""
        if adapter.state == S.CANDIDATE:
            return self.registry.accepted(adapter.model)
        back = self.registry.last_accepted(adapter)
        return back.name if back is not None else self.registry.base

    async def freeze(self, which: str, reason: str | None, *, frozen: bool = True) -> Adapter:
        """By hand: it is not accepted and newer versions wait, or the gate goes on with it and no guard freezes it.
        Raises ``Problem``: there is none such (404), it does not serve (409).
        """
        return await self.fleet.agree(lambda: self._freeze(which, reason, frozen))

    async def _freeze(self, which: str, reason: str | None, frozen: bool) -> Adapter:
        adapter = self._served(self.registry.find(which))
        said = f"{'frozen' if frozen else 'unfrozen'} by hand" + (f": {reason}" if reason else "")
        adapter = adapter.model_copy(update={"frozen": frozen, "reason": said})
        await self.journal.change([adapter], event("adapter", adapter=adapter.name, frozen=frozen, reason=said))
        return adapter

    def effect(self, adapter: Adapter, action: Action, group: str | None = None) -> list[str]:
        """What an action by hand would do, in sentences. Raises ``Problem`` where it cannot be done."""
        name, tried = adapter.name, self.registry.of(adapter.model, S.CANDIDATE)
        if action == "freeze":
            self._served(adapter)
            return [f"{name} is not accepted.", "Newer versions wait until somebody unfreezes, promotes or demotes it."]
        if action == "unfreeze":
            self._served(adapter)
            return [f"The gate decides on {name} again.", "No guard freezes it any more."]
        if group is not None:
            to = name if action == "promote" else self._without(self._served(adapter))
            return [f"New runs of {group} get {to}.", "All other runs get what they get now."]
        if action == "demote":
            return self._demotion(adapter)
        ended = [] if tried is None or tried.name == name else [tried]
        if adapter.state == S.LIVE:
            says = [f"{name} is live already."]
        else:
            says = [
                f"New runs get {name}, without a trial"
                + (", as soon as it is loaded." if not adapter.loaded and adapter.state != S.CANDIDATE else ".")
            ]
        for one in ended:
            newer = adapter.state == S.LIVE or one.version > adapter.version
            says.append(f"The trial of {one.name} ends: it is {'taken back' if newer else 'retired'}.")
            if newer:
                says += [
                    f"{a.name} was made from it, and is dropped."
                    for a in self._descendants([], one)
                    if a.name not in (one.name, name)
                ]
        if adapter.kept_from:
            says.append(f"It goes to {', '.join(adapter.kept_from)} again, too.")
        return says

    def _demotion(self, adapter: Adapter) -> list[str]:
        if adapter.state not in (S.CANDIDATE, S.LIVE, S.LOADING):
            return [f"{adapter.name} is {adapter.state.value.replace('_', ' ')}: there is nothing to take back."]
        gone = adapter.model_copy(update={"state": S.ROLLED_BACK})
        says = [f"{adapter.name} is taken back.", "Running episodes keep it until they end."]
        if adapter.state != S.LOADING:
            says.insert(1, f"New runs get {self._without(adapter)}.")
        return says + [f"{a.name} was made from it, and is dropped." for a in self._descendants([gone], gone)]


def _gone(adapter: Adapter, taken: str) -> Adapter:
    """It goes with the version that it was made from: taken back if episodes had it, else never served."""
    gone = _retired(adapter, made_from(taken))
    return gone.model_copy(update={"state": S.ROLLED_BACK}) if adapter.state == S.CANDIDATE else gone


def _retired(adapter: Adapter, reason: str) -> Adapter:
    """It is tried no longer, and there is no verdict."""
    gate = _closed(adapter.gate, reason)
    return adapter.model_copy(update={"state": S.RETIRED, "reason": reason, "decided": time.time(), "gate": gate})


def _closed(gate: GateReport | None, reason: str) -> GateReport | None:
    """A report of what was decided without the gate: what it saw stays, and nothing more is to come."""
    if gate is None or gate.decision != "undecided":
        return gate
    return gate.model_copy(
        update={"episodes_left": None, "reason": reason, "fix": None, "control_share": 0.0, "best_share": 0.0}
    )


def _dumped(report: GateReport | None) -> dict[str, JsonValue] | None:
    return report.model_dump(mode="json") if report is not None else None
