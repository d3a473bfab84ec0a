"""The adapters that there are, by state: what is live, what is tried, what must stay in the engines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterState, fallen
from slipstream_proxy.control.adapters.files import AdapterFiles
from slipstream_proxy.control.shared.problem import Problem

S = AdapterState


class Arm(NamedTuple):
    """A share of new episodes that gets another adapter than the live one."""

    adapter: str
    arm: str
    share: float


class AdapterRegistry:
    """What is known in memory. Only the event loop changes this; ``journal.py`` keeps changes durably.

    A year has tens of thousands of versions, so what is asked often is found by state.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.files = AdapterFiles(config)
        self.items: dict[str, Adapter] = {}
        self.changes = 0
        """How often an adapter came or changed its role."""
        self._by_state: dict[AdapterState, dict[str, Adapter]] = {state: {} for state in AdapterState}
        self._bests: dict[str, Adapter] = {}
        self.revision = -1
        """The store's revision that ``items`` stands at (with a shared store)."""
        self.mine: set[str] = set()
        """Adapters that came to this proxy and are loading: it decides on them once they are loaded."""
        self.arrived: dict[str, float] = {}
        """Adapter that is loading → when it came (monotonic)."""
        self.given_up: set[str] = set()
        """Adapters whose episodes moved to the live one, because the engine has too few slots."""
        self.pins: dict[str, int] = {}
        """Adapter → open episodes, as of the last look at the store."""
        self.in_use: dict[str, frozenset[str]] = {}
        """Worker → adapters of its calls under way that no pin stands for."""
        self.kept_until: dict[str, float] = {}
        """Adapter that a replay asks → until when it stays in the engines for that (monotonic)."""

    def copy(self) -> AdapterRegistry:
        """To see what a change would make of it."""
        twin = AdapterRegistry(self.config)
        twin.given_up = set(self.given_up)
        twin.put(self.items.values())
        return twin

    @property
    def models(self) -> list[str]:
        """Names of the trained models."""
        return sorted({self.config.model_name, *(r.trained for r in self.config.models.values() if r.trained)})

    @property
    def base(self) -> str:
        """The engine's own model: it answers while there is no adapter."""
        return self.config.model_name

    def find(self, which: str) -> Adapter:
        """By full name, or by version number if one model alone has it. Raises ``Problem`` 404 or 409."""
        if which in self.items:
            return self.items[which]
        found = [a for a in self.items.values() if str(a.version) == which]
        if len(found) == 1:
            return found[0]
        if found:
            fix = f"use one of {', '.join(sorted(a.name for a in found))}"
            raise Problem(409, f"several models have a version {which}", field="path.adapter", fix=fix)
        if which in self.models:
            live = self.live(which)
            fix = f"demote {live}: new runs get the version before it, and the base model where there is none"
            now = "it is live already" if live == which else fix
            raise Problem(404, f"{which} is the base model, and no adapter", field="path.adapter", fix=now)
        raise Problem(404, f"no adapter {which}", field="path.adapter", fix="list them with GET adapters")

    def of(self, model: str, state: AdapterState, items: Mapping[str, Adapter] | None = None) -> Adapter | None:
        """The newest of a model in a state. At most one is live, and at most one is a candidate."""
        found = (self._by_state[state] if items is None else items).values()
        return max((a for a in found if a.model == model and a.state == state), key=lambda a: a.version, default=None)

    def accepted(self, model: str, items: Mapping[str, Adapter] | None = None) -> str:
        live = self.of(model, S.LIVE, items)
        return live.name if live else self.base

    def live(self, model: str, items: Mapping[str, Adapter] | None = None) -> str:
        """What new episodes get, arms aside."""
        candidate = self.of(model, S.CANDIDATE, items)
        return candidate.name if candidate and self.config.gate.trial == "guard" else self.accepted(model, items)

    def best(self, model: str) -> str:
        """The version that no later one was shown to beat, if its files are still there; else the base model."""
        found = (a for a in self._bests.values() if a.model == model and a.name not in self.given_up)
        good = [a for a in found if a.state in (S.LIVE, S.RETIRED) and self.files.exist(a)]
        return max(good, key=lambda a: a.version).name if good else self.base

    def frozen(self, model: str) -> bool | None:
        """True: by hand, what is on trial is not accepted, and newer versions wait. False: a person unfroze what is on
        trial. None: nobody said anything. While something is on trial, a frozen live version stays live: nothing takes
        its place.
        """
        tried, live = self.of(model, S.CANDIDATE), self.of(model, S.LIVE)
        if tried is not None and tried.frozen is not None:
            return tried.frozen
        if tried is not None:
            return True if live is not None and live.frozen else None
        return live.frozen if live is not None else None

    def served(self, model: str) -> Adapter | None:
        """The version on trial, else the live one; None: the base model."""
        return self.of(model, S.CANDIDATE) or self.of(model, S.LIVE)

    def kept_from(self, model: str) -> dict[str, str]:
        """Group of runs → the adapter that its new runs get, because what is served was taken back for it alone. Where
        that one cannot be served: the best version, if it is another one than what is served, else the base model.
        """
        served = self.served(model)
        if served is None:
            return {}
        best = self.best(model)
        other = self.base if best == served.name else best
        fits = {
            to: to == self.base or (self.servable(to) and self.files.exist(self.items[to]))
            for to in served.kept_from.values()
        }
        return {group: to if fits[to] else other for group, to in served.kept_from.items()}

    def last_accepted(self, than: Adapter, items: Mapping[str, Adapter] | None = None) -> Adapter | None:
        """The adapter that a rollback of this one goes back to. None: the base model."""
        retired = (self._by_state[S.RETIRED] if items is None else items).values()
        older = [a for a in list(retired) if a.model == than.model and a.state == S.RETIRED and a.accepted]
        older.sort(key=lambda a: a.decided or 0.0, reverse=True)
        return next((a for a in older if self.files.exist(a)), None)

    def fallen(self, name: str | None) -> str | None:
        """The version that was taken back and that this one is, or was made from; None: it stands."""
        return fallen(self.items, name)

    def keep(self) -> dict[str, Adapter]:
        """What must stay in the engines: live, candidate, best, and what running episodes are pinned to."""
        roles, usable = {S.LIVE, S.CANDIDATE}, {S.RETIRED, S.ROLLED_BACK}
        held = {n for n, count in self.pins.items() if count > 0 and n not in self.given_up}
        if self.config.gate.trial != "manual" and self.config.gate.holdout:
            held |= {self.best(model) for model in self.models}
        held |= self.group_adapters()
        held |= {n for n in self.borrowed() if n not in self.given_up}
        kept = [self.items[n] for n in held if n in self.items and self.items[n].state in usable]
        return {a.name: a for a in sorted([*self.in_state(*roles), *kept], key=lambda a: (a.model, a.version))}

    def borrowed(self) -> set[str]:
        """Adapters that calls without a pin use, and those that are kept for a replay."""
        now = time.monotonic()
        return {n for used in self.in_use.values() for n in used} | {n for n, t in self.kept_until.items() if t > now}

    def group_adapters(self) -> set[str]:
        """Adapters that groups of runs keep."""
        return {to for model in self.models for to in self.kept_from(model).values()}

    def wanted(self) -> dict[str, str]:
        """Adapter that every engine must have → its path as vLLM sees it."""
        return {n: self.files.path_for_engine(a) for n, a in self.keep().items()}

    def paths_of(self, name: str) -> tuple[str, ...]:
        """The paths that an engine may have an adapter of ours from; none if it is not ours."""
        adapter = self.items.get(name)
        return self.files.engine_paths(adapter) if adapter is not None else ()

    def in_state(self, *states: AdapterState) -> list[Adapter]:
        return [a for state in states for a in list(self._by_state[state].values())]

    def servable(self, name: str) -> bool:
        adapter = self.items.get(name)
        return adapter is not None and adapter.state not in (S.REFUSED, S.LOADING) and name not in self.given_up

    def versions(self, model: str) -> tuple[dict[str, int], int]:
        """Adapter → version (base: 0), and the live one's version: staleness counts from there."""
        good = (a for a in self.items.values() if a.model == model and a.state not in (S.ROLLED_BACK, S.REFUSED))
        versions = {a.name: a.version for a in good}
        versions[self.base] = 0
        return versions, versions.get(self.live(model), 0)

    def pin(self, name: str) -> None:
        """A running episode has it: it stays in the engines at least until the store is asked again."""
        self.pins[name] = max(1, self.pins.get(name, 0))

    def put(self, adapters: Iterable[Adapter]) -> None:
        for adapter in adapters:
            self._put(adapter)

    def _put(self, adapter: Adapter) -> None:
        name = adapter.name
        before = self.items.get(name)
        if before is not None:
            self._by_state[before.state].pop(name, None)
        if before is None or _role(before) != _role(adapter):
            self.changes += 1
        self.items[name] = self._by_state[adapter.state][name] = adapter
        if adapter.best:
            self._bests[name] = adapter
        else:
            self._bests.pop(name, None)

    def adopt(self, revision: int, found: Sequence[Adapter]) -> None:
        """Take over what the store says at this revision."""
        for a in found:
            before = self.items.get(a.name)
            if a.state == S.LOADING and (before is None or before.state != S.LOADING):
                self.arrived[a.name] = time.monotonic()
            elif a.state != S.LOADING:
                self.arrived.pop(a.name, None)
                self.mine.discard(a.name)
            if a.state in (S.LOADING, S.LIVE, S.CANDIDATE):
                self.given_up.discard(a.name)
            self._put(a.model_copy(update={"loaded": False}))
        self.revision = revision

    def expect(self, adapter: Adapter) -> None:
        """It came to this proxy and will be loaded."""
        self.arrived.setdefault(adapter.name, time.monotonic())
        self.given_up.discard(adapter.name)
        self.mine.add(adapter.name)

    def shown(self, adapter: Adapter, loaded: set[str]) -> Adapter:
        """With what the API adds: open episodes, whether every engine has it, and whether its files are there."""
        update = {
            "episodes": self.pins.get(adapter.name, 0),
            "loaded": adapter.name in loaded,
            "files": self.files.exist(adapter),
        }
        return adapter.model_copy(update=update)

    def public(self, loaded: set[str]) -> list[Adapter]:
        """All of them, newest first."""
        return sorted((self.shown(a, loaded) for a in self.items.values()), key=lambda a: (a.model, -a.version))


def _role(a: Adapter) -> tuple[AdapterState, bool, bool]:
    return a.state, a.accepted, a.best
