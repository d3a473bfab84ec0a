"""What becomes of adapters' states, by the gate and by hand: computed, and not done yet.

What is said of an action by hand before it is done (``preview``) is computed by the same lines as what is done.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from slipstream.contract import SERVED_STATES, Action, Adapter, AdapterState, Event, GateReport, fallen
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.shared.problem import Problem

S = AdapterState
BY_HAND = "promoted by hand"
WAITS_TEXT = ": it goes live when it is loaded"


class Change(NamedTuple):
    """``adapter`` as it will be, all that changes with it, and what is told of it."""

    adapter: Adapter
    changed: list[Adapter]
    events: list[Event]


class StateChanges:
    """Looks at the registry and changes nothing."""

    def __init__(self, registry: AdapterRegistry) -> None:
        self.registry = registry

    def accept(
        self,
        adapter: Adapter,
        reason: str,
        report: GateReport | None = None,
        *,
        best: bool = True,
        ended: Sequence[Adapter] = (),
    ) -> Change:
        """It is live, and the adapter before it retires. ``best``: slides are measured against it from now on.
        ``ended``: other adapters whose trial ends with that, as they will be.
        """
        before = self.registry.of(adapter.model, S.LIVE)
        gate = report or closed(adapter.gate, reason)
        now = {"state": S.LIVE, "reason": reason, "decided": time.time(), "gate": gate, "best": best}
        adapter = adapter.model_copy(update={**now, "accepted": True, "forced": False, "frozen": None})
        changed = [*ended, adapter]
        if before and before.name != adapter.name:
            update = {"state": S.RETIRED, "reason": f"{adapter.name} is live", "frozen": None}
            changed.insert(0, before.model_copy(update=update))
        if best:
            changed = self._only_best(adapter, changed)
        was = before.name if before else self.registry.base
        note = event("promote", adapter=adapter.name, before=was, reason=reason, gate=dumped(report))
        return Change(adapter, changed, [note])

    def take_back(
        self, adapter: Adapter, reason: str, report: GateReport | None = None, state: AdapterState = S.ROLLED_BACK
    ) -> Change:
        """Rolled back or refused: the last accepted adapter answers new episodes."""
        back = self.registry.last_accepted(adapter) if adapter.state == S.LIVE else None
        was_best = adapter.best
        gate = report or closed(adapter.gate, reason)
        update = {"state": state, "reason": reason, "decided": time.time(), "gate": gate}
        adapter = adapter.model_copy(update={**update, "best": False, "forced": False, "frozen": None})
        changed = [adapter]
        if state == S.ROLLED_BACK or adapter.failed_replay:
            changed += self.descendants(changed, adapter)
        if back:
            update = {"state": S.LIVE, "reason": f"{adapter.name} was taken back", "best": was_best or back.best}
            changed.append(back.model_copy(update=update))
        kind = "rollback" if state == S.ROLLED_BACK else "refused"
        to = self.registry.live(adapter.model, {**self.registry.items, **{a.name: a for a in changed}})
        return Change(adapter, changed, [event(kind, adapter=adapter.name, to=to, reason=reason, gate=dumped(report))])

    def anew(self, model: str, names: Collection[str], reason: str) -> Change | None:
        """None of these versions serves any more, and none is gone back to: the last accepted one that is not among
        them answers new episodes. None: they are over already.
        """
        items, states = self.registry.items, (S.LIVE, S.CANDIDATE, S.LOADING, S.RETIRED)
        ours = (a for name in names if (a := items.get(name)) is not None and a.model == model and not a.anew)
        found = sorted((a for a in ours if a.state in states), key=lambda a: a.version)
        if not found:
            return None
        update = {"state": S.RETIRED, "reason": reason, "decided": time.time(), "anew": True, "accepted": False}
        none = {"best": False, "forced": False, "frozen": None}
        changed = [a.model_copy(update={**update, **none, "gate": closed(a.gate, reason)}) for a in found]
        last = changed[-1]
        ended = {**items, **{a.name: a for a in changed}}
        if any(a.state == S.LIVE for a in found) and (back := self.registry.last_accepted(last, ended)):
            best = back.best or any(a.best for a in found)
            update = {"state": S.LIVE, "reason": f"{last.name} was taken back", "best": best}
            changed.append(back.model_copy(update=update))
        changed += self.descendants(changed, last)
        to = self.registry.live(model, {**items, **{a.name: a for a in changed}})
        return Change(last, changed, [event("rollback", adapter=last.name, to=to, reason=reason)])

    def take_back_for(
        self, adapter: Adapter, group: str, to: str, reason: str, report: GateReport | None = None
    ) -> Change:
        """For one group of runs alone: its new runs get ``to``, and all others go on as before. A version on trial is
        kept from the group too: it would take that over if it came now.
        """
        given = [name for name in adapter.given if name != group]
        update = {"kept_from": {**adapter.kept_from, group: to}, "given": given, "reason": reason}
        adapter = adapter.model_copy(update=update)
        changed, tried = [adapter], self.registry.of(adapter.model, S.CANDIDATE)
        if tried is not None and tried.name != adapter.name and group not in tried.kept_from:
            changed.append(tried.model_copy(update={"kept_from": {**tried.kept_from, group: to}}))
        note = event("rollback", adapter=adapter.name, group=group, to=to, reason=reason, gate=dumped(report))
        return Change(adapter, changed, [note])

    def descendants(self, changed: list[Adapter], adapter: Adapter) -> list[Adapter]:
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
                found.append(gone(a, taken))
        return found

    def _only_best(self, adapter: Adapter, changed: list[Adapter]) -> list[Adapter]:
        """The changes, with the mark of the best version taken from all others of the model."""
        now = {a.name: a for a in changed}
        for a in self.registry.items.values():
            if a.model == adapter.model and a.best and a.name != adapter.name:
                now[a.name] = now.get(a.name, a).model_copy(update={"best": False})
        return list(now.values())

    # by hand

    def by_hand(
        self, adapter: Adapter, action: Action, reason: str | None = None, group: str | None = None
    ) -> Iterator[Change]:
        """One change after the other: each is to be put into the registry before the next one is asked for. Raises
        ``Problem`` 409 where the action cannot be done.
        """
        if group is not None and action in ("freeze", "unfreeze"):
            text = f"a version is {action.replace('ze', 'zen')} for all runs"
            raise Problem(422, text, field="body.group", fix="leave group out, or demote it for that group")
        if action == "promote":
            return self._promote(adapter, reason) if group is None else self._give_back(adapter, group, reason)
        if action == "demote":
            return self._demote(adapter, reason, group)
        return self._freeze(adapter, reason, action == "freeze")

    def _promote(self, adapter: Adapter, reason: str | None) -> Iterator[Change]:
        tried = self.registry.of(adapter.model, S.CANDIDATE)
        if adapter.state == S.LIVE:
            if tried is not None:
                yield self.take_back(tried, f"{adapter.name} was kept by hand")
            given = adapter.model_copy(update={"kept_from": {}})
            if not adapter.best:  # by hand is final: slides are measured against it from now on
                yield self.accept(given, reason or BY_HAND)
            elif adapter.kept_from:  # all runs get it
                given = given.model_copy(update={"reason": reason or BY_HAND})
                yield Change(given, [given], [])
            return
        if adapter.state == S.CANDIDATE:
            yield self.accept_by_hand(adapter, reason)
            return
        self.expect_servable(adapter)
        reason = f"{reason or BY_HAND}{WAITS_TEXT}"
        if tried is not None:
            reason += f", and the trial of {tried.name} ends"
        adapter = adapter.model_copy(update={"state": S.LOADING, "reason": reason, "forced": True})
        yield Change(adapter, [adapter], [])

    def expect_servable(self, adapter: Adapter) -> None:
        """Raises ``Problem`` 409."""
        if not self.registry.files.exist(adapter):
            text = f"{adapter.name} cannot be served: its files are gone from {self.registry.files.folder(adapter)}"
            fix = "put its folder back, or promote another version; adapters.keep says how many stay on disk"
            raise Problem(409, text, field="path.adapter", fix=fix)
        if adapter.state == S.REFUSED and not adapter.failed_replay:
            text, fix = f"{adapter.name} cannot be served: {adapter.reason}", "publish it again under the next number"
            raise Problem(409, text, field="path.adapter", fix=fix)

    def accept_by_hand(self, adapter: Adapter, reason: str | None) -> Change:
        """By hand is final: what is on trial ends. A newer one is taken back, with what was made from it."""
        reason = (reason or BY_HAND).split(WAITS_TEXT, 1)[0]
        adapter = adapter.model_copy(update={"kept_from": {}})
        tried = self.registry.of(adapter.model, S.CANDIDATE)
        if tried is None or tried.name == adapter.name:
            return self.accept(adapter, reason)
        ended = retired(tried, f"{adapter.name} was promoted by hand")
        if tried.version < adapter.version:
            return self.accept(adapter, f"{reason}; the trial of {tried.name} ended", ended=[ended])
        ended = ended.model_copy(update={"state": S.ROLLED_BACK, "best": False})
        made = self.descendants([ended, adapter], tried)
        return self.accept(adapter, f"{reason}; {tried.name} was taken back", ended=[ended, *made])

    def _demote(self, adapter: Adapter, reason: str | None, group: str | None) -> Iterator[Change]:
        if group is not None:
            to = self._without(self._served(adapter))
            text = f"taken back for {group} by hand: its new runs get {to}"
            yield self.take_back_for(adapter, group, to, f"{reason}; {text}" if reason else text)
            return
        if adapter.state not in (S.CANDIDATE, S.LIVE, S.LOADING):
            text = f"{adapter.name} is {adapter.state.value.replace('_', ' ')}: there is nothing to take back"
            raise Problem(409, text, field="path.adapter")
        yield self.take_back(adapter, reason or "taken back by hand")

    def _give_back(self, adapter: Adapter, group: str, reason: str | None) -> Iterator[Change]:
        if group not in self._served(adapter).kept_from:
            known = ", ".join(adapter.kept_from) or "none"
            text = f"{adapter.name} was not taken back for {group} alone"
            raise Problem(409, text, field="body.group", fix=f"the groups that it was taken back for: {known}")
        kept_from = {name: to for name, to in adapter.kept_from.items() if name != group}
        reason, given = f"{reason or BY_HAND}: given back to {group}", sorted({*adapter.given, group})
        adapter = adapter.model_copy(update={"kept_from": kept_from, "given": given, "reason": reason})
        changed, tried = [adapter], self.registry.of(adapter.model, S.CANDIDATE)
        if tried is not None and tried.name != adapter.name:  # the group gets this one, and not what is on trial
            changed.append(tried.model_copy(update={"kept_from": {**tried.kept_from, group: adapter.name}}))
        yield Change(adapter, changed, [event("promote", adapter=adapter.name, group=group, reason=reason)])

    def _freeze(self, adapter: Adapter, reason: str | None, frozen: bool) -> Iterator[Change]:
        said = f"{'frozen' if frozen else 'unfrozen'} by hand" + (f": {reason}" if reason else "")
        adapter = self._served(adapter).model_copy(update={"frozen": frozen, "reason": said})
        yield Change(adapter, [adapter], [event("adapter", adapter=adapter.name, frozen=frozen, reason=said)])

    def _served(self, adapter: Adapter) -> Adapter:
        """The same. Raises ``Problem`` 409 where new runs do not get it."""
        if adapter.state in SERVED_STATES:
            return adapter
        text = f"{adapter.name} is {adapter.state.value.replace('_', ' ')}: no new run gets it"
        raise Problem(409, text, field="path.adapter", fix="name the version on trial, or the live one")

    def _without(self, adapter: Adapter) -> str:
        """What new runs get if it is taken back."""
        if adapter.state == S.CANDIDATE:
            return self.registry.accepted(adapter.model)
        back = self.registry.last_accepted(adapter)
        return back.name if back is not None else self.registry.base


def event(kind: str, **data: JsonValue) -> Event:
    return Event(kind=kind, at=time.time(), data=data)


def made_from(taken: str) -> str:
    """The reason of a version that goes with the one that it was made from."""
    return f"made from {taken}, which was taken back"


def gone(adapter: Adapter, taken: str) -> Adapter:
    """It goes with the version that it was made from: taken back if episodes had it, else never served."""
    ended = retired(adapter, made_from(taken))
    return ended.model_copy(update={"state": S.ROLLED_BACK}) if adapter.state == S.CANDIDATE else ended


def retired(adapter: Adapter, reason: str) -> Adapter:
    """It is tried no longer, and there is no verdict."""
    now = {"state": S.RETIRED, "reason": reason, "decided": time.time(), "gate": closed(adapter.gate, reason)}
    return adapter.model_copy(update={**now, "frozen": None})


def closed(gate: GateReport | None, reason: str) -> GateReport | None:
    """A report of what was decided without the gate: what it saw stays, and nothing more is to come."""
    if gate is None or gate.decision != "undecided":
        return gate
    return gate.model_copy(
        update={"episodes_left": None, "reason": reason, "fix": None, "control_share": 0.0, "best_share": 0.0}
        | {"trial_share": 0.0, "stage": None, "gets": ""}
    )


def dumped(report: GateReport | None) -> dict[str, JsonValue] | None:
    return report.model_dump(mode="json") if report is not None else None
