"""Bets on guards: side measures of a run with the direction that is bad. A policy can learn to please the reward alone.

Null hypothesis of each: given the past, the measure of tested runs is worse by no more than its margin. The bets are
the reward's (``detector``), with an error level of their own for each guard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from slipstream.shared.error_budget import GUARD_STAKE
from slipstream_proxy.control.gate.baseline import Baseline, FadingMean, mean_of
from slipstream_proxy.control.gate.detector import LEAST_EPISODES, SEEN_ERRORS, BettingDetector
from slipstream_proxy.control.gate.groups import KNOWN_EVIDENCE, PRIOR_RUNS
from slipstream_proxy.control.gate.scale import RewardScale

if TYPE_CHECKING:
    from pydantic import JsonValue

Direction = Literal["up", "down"]
SHARE_MEASURES: Final = frozenset(("cut_off", "refusals", "tool_errors"))
"""Measures that are shares of a run's calls, from 0 to 1. The range of all others is learned."""
GUARD_MARGIN, LEAST_MARGIN = 0.1, 0.01
"""Of the measure's range. Of a share that is rare with the control: that share, and no less than the second: one tool
call of a hundred that fails may become two.
"""
USUAL_CUT_OFF_SHARE: Final = 0.25
"""Where more of the control's calls than these end by their length, the agent's own limit is what ends them, and that
more do is no loss of quality: the reward says what such replies are worth.
"""
WORSE_ERRORS, WAITING_ERRORS = -1.5, -0.5
"""Standard errors by which a guard is worse than its margin where the control gets half of the runs, and where an
acceptance waits. Neither freezes.
"""
MISSED_MARGINS: Final = 3.0
"""Times its margin, at most ``GUARD_MARGIN`` beyond it: a guard that may be worse by more, as far as is seen, holds
back an acceptance. Of calls of which one in a hundred failed, three may.
"""
KNOWN_SHARE: Final = 0.9
"""Of an arm's runs that have the measure, below which those that lack it may be unlike the others."""
KNOWN_MEMORY: Final = 200.0


class Guard:
    def __init__(self, name: str, bad: Direction) -> None:
        self.name, self.bad = name, bad
        self.scale = RewardScale(0.0, 1.0) if name in SHARE_MEASURES else RewardScale()
        self.baseline = Baseline()
        self.detector = BettingDetector(1, GUARD_STAKE.at_first, GUARD_STAKE.per_run, shifts=False, margin=GUARD_MARGIN)
        self.sums = [0.0, 0.0]
        """Of the control's measures, and of those on trial."""
        self.known = [FadingMean(KNOWN_MEMORY, 1.0, 2.0), FadingMean(KNOWN_MEMORY, 1.0, 2.0)]
        """Shares of the control's runs, and of those on trial, that have the measure."""

    def means(self) -> tuple[float, float] | None:
        """→ (the control's mean, the mean on trial) in the measure's own units; None: an arm is empty."""
        counts = (self.detector.n_reference, self.detector.n_tested)
        return (self.sums[0] / counts[0], self.sums[1] / counts[1]) if min(counts) else None

    def see(self, value: float | None, task: str, tested: bool, share: float) -> None:
        """``value`` None: the run does not have the measure."""
        partial = min(arm.value for arm in self.known) < KNOWN_SHARE
        self.known[tested].see(float(value is not None))
        if value is None:
            if partial:
                self.detector.see(None, self.baseline.of(task), tested, share, partial)
            return
        unit = self.scale.unit(value)
        x = 1.0 - unit if self.bad == "up" else unit
        if self.name in SHARE_MEASURES:
            rare = 1.0 - self.baseline.control.value if self.bad == "up" else self.baseline.control.value
            self.detector.margin = min(max(rare, LEAST_MARGIN), GUARD_MARGIN)
        self.detector.see(x, self.baseline.of(task), tested, share, partial)
        self.baseline.see(x, task, tested=tested)
        self.sums[tested] += value
        low, high = self.scale.low, self.scale.high
        if self.scale.see(value):
            if self.bad == "up":
                self.baseline.rescale(-high, -low, -self.scale.high, -self.scale.low)
            else:
                self.baseline.rescale(low, high, self.scale.low, self.scale.high)

    def is_usual(self) -> bool:
        """Whether calls that are cut off are what the control's calls are."""
        control = self.baseline.control
        return (
            self.name == "cut_off"
            and self.bad == "up"
            and control.n >= LEAST_EPISODES
            and 1.0 - control.value > USUAL_CUT_OFF_SHARE
        )

    def estimate(self) -> tuple[float, float]:
        """→ (how much better the measure is on trial, its standard error). A share spreads as its own mean says. While
        few are known: (0.0, 0.0).
        """
        bets = self.detector
        if bets.n_tested < LEAST_EPISODES:
            return 0.0, 0.0
        reference = bets.n_reference + min(max(self.baseline.control.n, PRIOR_RUNS), KNOWN_EVIDENCE)
        better = bets.sum_tested / bets.n_tested - bets.sum_reference / reference
        mean = (self.sums[1] + 1.0) / (bets.n_tested + 2.0) if self.name in SHARE_MEASURES else 0.5
        spread = math.sqrt(mean * (1.0 - mean))
        return better, spread * math.sqrt(1.0 / bets.n_tested + 1.0 / reference)

    def errors(self) -> float:
        """As ``GroupSlot.errors``."""
        better, error = self.estimate()
        return (better + self.detector.margin) / error if error else 0.0

    def may_be_worse(self) -> bool:
        """Whether it seems worse, or may be by more than an acceptance bears."""
        better, error = self.estimate()
        bears = min(MISSED_MARGINS * self.detector.margin, self.detector.margin + GUARD_MARGIN)
        return error > 0.0 and (self.errors() < WAITING_ERRORS or SEEN_ERRORS * error - better > bears)

    def reset(self, *, fresh: bool) -> None:
        self.detector.reset(fresh=fresh)
        self.sums = [0.0, 0.0]

    def forget(self) -> None:
        """As ``BettingDetector.forget``."""
        self.detector.forget()
        self.sums = [0.0, 0.0]

    def dump(self) -> dict[str, JsonValue]:
        sums: list[JsonValue] = [*self.sums]
        scale, baseline = self.scale.dump(), self.baseline.dump()
        known: list[JsonValue] = [[arm.value, arm.n] for arm in self.known]
        state: dict[str, JsonValue] = {"scale": scale, "baseline": baseline, "bets": self.detector.dump(), "sums": sums}
        return {"bad": self.bad, **state, "known": known}

    def load(self, kept: JsonValue) -> None:
        """What was kept of a guard with another bad direction is forgotten."""
        if not isinstance(kept, dict) or kept["bad"] != self.bad:
            return
        scale, baseline, sums = kept["scale"], kept["baseline"], kept["sums"]
        if not isinstance(scale, dict) or not isinstance(baseline, dict) or not isinstance(sums, list):
            raise TypeError("a guard of another shape")
        self.scale.load(scale)
        self.baseline.load(baseline)
        self.detector.load(kept["bets"])
        self.sums = [float(x) for x in sums if isinstance(x, int | float)]
        known = kept.get("known")
        if isinstance(known, list):
            self.known = [mean_of(KNOWN_MEMORY, arm) for arm in known]


class GuardWatch:
    def __init__(self, guards: Mapping[str, Direction]) -> None:
        self.guards = [Guard(name, bad) for name, bad in guards.items()]

    def see(self, measures: Mapping[str, float], task: str, tested: bool, share: float) -> None:
        """A run's measures, as far as they are known."""
        for guard in self.guards:
            guard.see(measures.get(guard.name), task, tested, share)

    def start(self) -> None:
        for guard in self.guards:
            guard.detector.start()

    def reset(self, *, fresh: bool = False) -> None:
        for guard in self.guards:
            guard.reset(fresh=fresh)

    def forget(self) -> None:
        for guard in self.guards:
            guard.forget()

    def accept(self) -> None:
        """What was on trial is the control from now on."""
        for guard in self.guards:
            guard.baseline.accept()
            guard.reset(fresh=False)

    def _heard(self) -> list[Guard]:
        return [guard for guard in self.guards if not guard.is_usual()]

    def growth(self) -> float:
        """Of the guard with the most evidence, for each unit put in: 1 without evidence."""
        return max((guard.detector.growth() for guard in self._heard()), default=1.0)

    def worst(self) -> Guard | None:
        """The guard with the most evidence; None: there is none."""
        return max(self._heard(), key=lambda guard: guard.detector.wealth, default=None)

    def doubted(self) -> Guard | None:
        """The guard that seems worst of those that hold back an acceptance; None: there is none."""
        found = [guard for guard in self._heard() if guard.may_be_worse() and guard.means()]
        return min(found, key=lambda guard: guard.errors(), default=None)

    def is_short(self) -> bool:
        """Whether some guard is worse, as far as is seen."""
        return any(guard.errors() < WORSE_ERRORS and guard.means() for guard in self._heard())

    def suspect(self) -> Guard | None:
        """The worst guard, where it is worse on trial as far as is seen; None: there is none."""
        found = self.worst()
        return found if found is not None and found.detector.growth() > 1.5 and found.means() else None

    def of(self, name: str) -> Guard | None:
        return next((guard for guard in self.guards if guard.name == name), None)

    def alarmed(self, alpha: float) -> Guard | None:
        """The guard that is shown to be worse; None: there is none."""
        found = self.worst()
        return found if found is not None and found.detector.wealth >= 1.0 / alpha else None

    def dump(self) -> dict[str, JsonValue]:
        return {guard.name: guard.dump() for guard in self.guards}

    def load(self, kept: JsonValue) -> None:
        """None, of a program that had no guards: they begin now."""
        if not isinstance(kept, dict):
            return
        for guard in self.guards:
            guard.load(kept.get(guard.name))
