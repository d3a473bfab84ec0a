"""The trial of each trained model, kept true to the registry: the gate decides there, and so do people and proxies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from slipstream.contract import AdapterState, GateReading, GateReport
from slipstream_proxy.control.adapters.registry import AdapterRegistry, Arm
from slipstream_proxy.control.gate.history import GateHistory, dump_readings, joined, load_readings
from slipstream_proxy.control.gate.report import report_of
from slipstream_proxy.control.gate.rules import Decision, TrialSettings
from slipstream_proxy.control.gate.trial import GateTrial
from slipstream_proxy.store.sqlstore import Store

log = logging.getLogger(__name__)
WARM = 2000
"""Outcomes that a gate without a memory reads first: they give it the rewards' scale."""
VERSIONS = 100
"""Newest versions of a model whose evidence is kept."""
S = AdapterState


class GateTrials:
    """Only the event loop calls this, apart from the static methods and ``read``, which block.

    ``served(adapter)``: some engine that is up has it. Where one of the compared adapters is served by none, for
    whatever reason, no episode is assigned to an arm: those of that adapter would move to the base model and not count,
    and the episodes of the other arm alone would bend the comparison.
    """

    def __init__(self, registry: AdapterRegistry, served: Callable[[str], bool] = lambda _: True) -> None:
        self.registry = registry
        self.served = served
        self.config = registry.config
        self.trials: dict[str, GateTrial] = {}
        self.cursors: dict[str, int] = {}
        """Model → the outcome up to which its trial has read."""
        self.histories: dict[str, GateHistory] = {}

    def make(self) -> GateTrial:
        gate = self.config.gate
        same = {"holdout", "share", "alpha", "settle", "reward_range"}
        return GateTrial(TrialSettings(canary=gate.mode == "canary", **gate.model_dump(include=same)))

    def of(self, model: str) -> GateTrial:
        """As the adapters stand now."""
        trial = self.trials.get(model)
        if trial is None:
            trial = self.trials[model] = self.make()
        registry = self.registry
        control, best = self.version(registry.accepted(model)), self.version(registry.best(model))
        candidate = registry.of(model, S.CANDIDATE)
        if control != trial.control:
            if control == trial.tried:
                trial.accept()
            elif control == trial.best:
                trial.roll_back(True, self.newest(model))
            else:
                trial.decide_by_hand(control)
        elif candidate is None and trial.on_trial:
            trial.roll_back(False, self.newest(model))
        if best != trial.best:
            trial.move_best(best)
        if candidate is not None and candidate.version != trial.tried:
            trial.serve(candidate.version)
        return trial

    def newest(self, model: str) -> int:
        return max((a.version for a in self.registry.items.values() if a.model == model), default=0)

    def version(self, name: str) -> int:
        """The version in an adapter's name; 0 is the base model."""
        adapter = self.registry.items.get(name)
        return adapter.version if adapter is not None else 0

    def names(self, model: str) -> dict[int, str]:
        """Version → name of those that have a part."""
        trial = self.of(model)
        versions = (trial.control, trial.best, trial.tried)
        return {v: f"{model}@{v}" if v else self.registry.base for v in versions}

    def arms(self, model: str) -> list[Arm]:
        """What new episodes get beside the live adapter."""
        if self.config.gate.mode == "manual":
            return []
        trial, registry = self.of(model), self.registry
        names = {trial.control: registry.accepted(model), trial.best: registry.best(model)}
        if (candidate := registry.of(model, S.CANDIDATE)) is not None:
            names[trial.tried] = candidate.name
        found = [Arm(names[version], arm, share) for version, arm, share in trial.arms() if version in names]
        arms = [a for a in found if a.adapter == registry.base or registry.servable(a.adapter)]
        compared = {registry.live(model), *(a.adapter for a in arms)} - {registry.base}
        return arms if all(map(self.served, compared)) else []

    def waits(self, model: str) -> bool:
        """Whether a version that has been loaded is to wait before it is tried (``gate.pace``)."""
        gate = self.config.gate
        if gate.mode == "manual" or (gate.mode == "guard" and not gate.holdout):
            return False
        return self.of(model).waits(gate.pace)

    def report(self, model: str, decision: Decision = Decision.UNDECIDED) -> GateReport:
        """What the gate sees now."""
        trial = self.of(model)
        waiting = [a.name for a in self.registry.in_state(S.LOADING) if a.model == model] if self.waits(model) else []
        manual = self.config.gate.mode == "manual"
        return report_of(trial, self.names(model), decision, manual=manual, waiting=waiting)

    def note(self, model: str, outcome: int, at: float) -> None:
        """Remember what the gate sees after this outcome, for the chart."""
        self.histories.setdefault(model, GateHistory()).note(self.trials[model], outcome, at)

    def unkept(self, model: str, version: int) -> list[GateReading]:
        """A version's readings that the store does not have yet."""
        return self.histories[model].take().get(version, []) if model in self.histories else []

    # kept over a restart

    def read(self, store: Store, model: str) -> tuple[int, GateTrial]:
        """→ (cursor, trial) as they were kept last, else a new trial that is to read the newest outcomes."""
        kept = store.cache.get(_key(model))
        if kept is not None:
            trial = self.make()
            try:
                trial.load(kept["trial"])
                return int(kept["cursor"]), trial
            except (KeyError, TypeError, ValueError, AssertionError) as e:
                log.warning("the gate begins again: what it kept for %s cannot be read: %s", model, e)
        return store.outcomes.last(model, WARM), self.make()

    def kept(self, model: str) -> dict[str, JsonValue]:
        return {"cursor": self.cursors[model], "trial": self.trials[model].dump()}

    @staticmethod
    def write(store: Store, model: str, kept: dict[str, JsonValue], now: float) -> None:
        store.cache.put(_key(model), kept, now)

    @staticmethod
    def readings(store: Store, model: str, version: int) -> list[GateReading]:
        """How the evidence of a version moved, as far as it is kept, oldest first."""
        return load_readings(store.cache.get(_history_key(model, version)))

    @staticmethod
    def write_history(store: Store, model: str, taken: Mapping[int, Sequence[GateReading]], now: float) -> None:
        """Before ``write``: what is read again after a crash takes the place of what stands here."""
        for version, readings in taken.items():
            name = _history_key(model, version)
            before = store.cache.get(name)
            store.cache.put(name, dump_readings(joined(load_readings(before), readings)), now)
            if before is None:
                store.cache.trim(_history_key(model, ""), VERSIONS)


def _key(model: str) -> str:
    return f"gate/{model}"


def _history_key(model: str, version: int | str) -> str:
    return f"gate evidence/{model}@{version}"
