"""The trial of each trained model, kept true to the registry: the gate decides there, and so do people and proxies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from slipstream.contract import AdapterState, GateReading, GateReport
from slipstream_proxy.assignment import groups_of, tried
from slipstream_proxy.control.adapters.registry import AdapterRegistry, Arm
from slipstream_proxy.control.gate.comparison import serves_again
from slipstream_proxy.control.gate.line import AssignmentLine
from slipstream_proxy.control.gate.report import GateHistory, dump_readings, joined, load_readings, report_of
from slipstream_proxy.control.gate.rules import ArmOutcome, Decision, HeldOut, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import arms_of, is_among_first
from slipstream_proxy.control.gate.trial import GateTrial
from slipstream_proxy.control.gate.verdict import beats_best
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.rows import load
from slipstream_proxy.store.values import Outcome

log = logging.getLogger(__name__)
WARM_UP_OUTCOMES = 2000
"""Outcomes that a gate without a memory reads first: they give it the rewards' scale."""
ENOUGH_HELD_OUT = 32
"""Held-out runs of the newest versions that are looked at."""
KEPT_VERSIONS = 100
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
        self.lines: dict[str, AssignmentLine] = {}
        self.histories: dict[str, GateHistory] = {}

    def make(self) -> GateTrial:
        gate = self.config.gate
        same = {
            "holdout",
            "share",
            "plan",
            "first",
            "alpha",
            "settle",
            "reward_range",
            "deadline",
            "guards",
            "guard_action",
        }
        by_group, alone = gate.group_verdict != "say", gate.group_verdict == "group"
        canary, rest = gate.trial == "canary", gate.model_dump(include=same)
        fails = self.config.reward.missing == "failure"
        settings = TrialSettings(canary=canary, by_group=by_group, group_alone=alone, missing_fails=fails, **rest)
        return GateTrial(settings)

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
                trial.accept(by_hand=best == control and not beats_best(trial))
            elif control == trial.best:
                trial.roll_back(True, self.newest(model))
            else:
                trial.decide_by_hand(control)
        elif candidate is None and trial.on_trial:
            trial.roll_back(False, self.newest(model))
        if best != trial.best:
            trial.move_best(best, fresh=candidate is None)
        if candidate is not None and candidate.version != trial.tried:
            trial.serve(candidate.version)
        trial.replayed = candidate.replay.suspicion if candidate is not None and candidate.replay is not None else None
        trial.frozen_by_hand, served = registry.frozen(model), registry.served(model)
        trial.keep_from(frozenset(registry.kept_from(model)), frozenset(served.given if served is not None else ()))
        return trial

    def hold_out(self, model: str, rows: Sequence[JsonObject]) -> None:
        """Tell the trial how held-out runs went: of the best version, and of the newest ones after it.

        ``rows``: of ``statistics.success_by_adapter``.
        """
        trial, versions = self.of(model), self.registry.versions(model)[0]
        found = {
            versions[str(row["adapter"])]: HeldOut(int(row["episodes"]), float(row["mean"]), float(row["std"]))
            for row in rows
            if row["model"] == model and row["split"] == "eval" and row["adapter"] in versions
        }
        later = HeldOut()
        for version in sorted((v for v in found if v > trial.best), reverse=True):
            if later.n < ENOUGH_HELD_OUT:
                later = later.joined(found[version])
        trial.hold_out(found.get(trial.best, HeldOut()), later)

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
        """What new episodes get beside the live adapter: all of them, or those of ``first``."""
        if self.config.gate.trial == "manual":
            return []
        trial, registry = self.of(model), self.registry
        adapters = {trial.control: registry.accepted(model), trial.best: registry.best(model)}
        if (candidate := registry.of(model, S.CANDIDATE)) is not None:
            adapters[trial.tried] = candidate.name
        found = [Arm(adapters[version], arm, share) for version, arm, share in arms_of(trial) if version in adapters]
        arms = [a for a in found if a.adapter == registry.base or registry.servable(a.adapter)]
        compared = {registry.live(model), *(a.adapter for a in arms)} - {registry.base}
        return arms if all(map(self.served, compared)) else []

    def first(self, model: str) -> list[str]:
        """The groups and keys whose new episodes alone get an arm; empty: all do."""
        return self.config.gate.first if is_among_first(self.of(model)) else []

    def waits(self, model: str) -> bool:
        """Whether a version that has been loaded is to wait before it is tried (``gate.pace``)."""
        gate, trial = self.config.gate, self.of(model)
        if gate.trial == "manual" or (gate.trial == "guard" and not gate.holdout):
            return trial.frozen_by_hand is True
        return trial.waits(gate.pace)

    def report(self, model: str, decision: Decision = Decision.UNDECIDED) -> GateReport:
        """What the gate sees now."""
        trial = self.of(model)
        waiting = [a.name for a in self.registry.in_state(S.LOADING) if a.model == model] if self.waits(model) else []
        manual = self.config.gate.trial == "manual"
        return report_of(trial, self.names(model), decision, manual=manual, waiting=waiting)

    def begin(self, model: str, cursor: int, at: float, trial: GateTrial) -> None:
        """As ``read`` gave it."""
        self.cursors[model], self.trials[model] = cursor, trial
        line = self.lines[model] = AssignmentLine(trial.deadline)
        line.cursor, line.at = cursor, at

    def feed(self, model: str, outcome: Outcome, measures: dict[str, float] | None = None) -> None:
        """The next assignment or end that was written down. ``measures``: of the guards, as far as they are known."""
        self.cursors[model] = outcome.seq
        if outcome.failed:
            self.lines[model].drop(outcome.eid)
            return
        name = tried(outcome.chances)
        seen = outcome_of(
            self.version(outcome.adapter),
            outcome.arm,
            outcome.chances,
            outcome.task,
            outcome.reward or 0.0,
            self.version(name) if name is not None else None,
        )
        seen.eid, seen.groups = outcome.eid, self.groups(outcome.named, outcome.tags)
        seen.measures = measures or {}
        line = self.lines[model]
        put = line.assign if outcome.reward is None else line.end
        put(outcome.seq, outcome.eid, outcome.at, seen, compared=bool(outcome.chances))

    def groups(self, task: str | None, tags: str) -> tuple[str, ...]:
        """The groups of an episode that are compared by themselves (``gate.by``). ``tags``: JSON."""
        by = self.config.gate.by
        known = load(tags, {}) if tags != "{}" and by != [] else {}
        found = dict(groups_of(task, known))
        return tuple(found.values() if by is None else [found[name] for name in by if name in found])

    def is_strange(self, model: str, group: str) -> bool:
        """Whether no run of this group was counted, although the gate looks at such groups."""
        by = self.config.gate.by
        looks = by is None or group.split("=", 1)[0] in by
        return looks and group not in self.of(model).evidence.groups.counts

    def next(self, model: str, now: float) -> ArmOutcome | None:
        """The run that is to be counted next; None: it is still running. ``now``: all that ended before is fed."""
        trial = self.of(model)
        trial.silent = self.lines[model].is_silent(trial.tried, time.time())
        return self.lines[model].take(now, min(trial.floor, trial.best_floor), serves_again(trial))

    def is_due(self, model: str, now: float) -> bool:
        """Whether the next run to be counted is past its deadline, as far as is fed."""
        return self.lines[model].is_due(now)

    def note(self, model: str) -> None:
        """Remember what the gate sees after this run, for the chart."""
        line = self.lines[model]
        self.histories.setdefault(model, GateHistory()).note(self.trials[model], line.cursor, line.at)

    def unkept(self, model: str, version: int) -> list[GateReading]:
        """A version's readings that the store does not have yet."""
        return self.histories[model].take().get(version, []) if model in self.histories else []

    # kept over a restart

    def read(self, store: Store, model: str) -> tuple[int, float, GateTrial]:
        """→ (cursor, when that was, trial) as they were kept last, else a new trial that is to read the newest
        outcomes.
        """
        kept = store.cache.get(_key(model))
        if kept is not None:
            trial = self.make()
            try:
                trial.load(kept["trial"])
                place = store.outcomes.place(model, int(kept["cursor"]), kept.get("last"))
                return place, float(kept.get("at", 0.0)), trial
            except (KeyError, TypeError, ValueError, AssertionError) as e:
                log.warning("the gate begins again: what it kept for %s cannot be read: %s", model, e)
        return store.outcomes.last(model, WARM_UP_OUTCOMES), 0.0, self.make()

    def kept(self, model: str) -> dict[str, JsonValue]:
        """The runs that wait are not in it: they are read again."""
        return {"cursor": self.counted(model), "at": self.lines[model].at, "trial": self.trials[model].dump()}

    def counted(self, model: str) -> int:
        """The number of what was written down up to which nobody waits for anything."""
        line = self.lines[model]
        return line.cursor if line.waiting else self.cursors[model]

    @staticmethod
    def change(store: Store, model: str, kept: dict[str, JsonValue], now: float) -> JsonObject:
        """The mutation (``cache``) that keeps this. Blocks."""
        last = store.outcomes.name_of(int(str(kept["cursor"])))
        return {"key": _key(model), "value": {**kept, "last": last}, "at": now}

    @staticmethod
    def readings(store: Store, model: str, version: int) -> list[GateReading]:
        """How the evidence of a version moved, as far as it is kept, oldest first."""
        return load_readings(store.cache.get(_history_key(model, version)))

    @staticmethod
    def history_changes(
        store: Store, model: str, taken: Mapping[int, Sequence[GateReading]], now: float
    ) -> list[JsonObject]:
        """The mutations (``cache``) that keep these readings, before ``change``: what is read again after a crash takes
        the place of what stands here. Blocks.
        """
        changes: list[JsonObject] = []
        for version, readings in taken.items():
            name = _history_key(model, version)
            value = dump_readings(joined(load_readings(store.cache.get(name)), readings))
            changes.append({"key": name, "value": value, "at": now, "newest": [_history_key(model, ""), KEPT_VERSIONS]})
        return changes


def _key(model: str) -> str:
    return f"gate/{model}"


def _history_key(model: str, version: int | str) -> str:
    return f"gate evidence/{model}@{version}"
