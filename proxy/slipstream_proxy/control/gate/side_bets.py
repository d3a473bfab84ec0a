"""What the gate bets on beside the reward of all runs: groups of them, and guards.

A group is the runs of one tag, or of one task: a gain elsewhere hides that it got worse. Each group that gets enough of
the traffic has bets of its own (``detector``), against the control and against the best version. The groups share a
fixed part of the error level, whatever their number. A group speaks against a version only where it loses more than
``REWARD_MARGIN``: a version that gains on the whole may lose a little somewhere.

A guard is a side measure of a run with the direction that is bad: a policy can learn to please the reward alone. It has
the same bets as the reward, and an error level of its own. It speaks against a version only where the measure is worse
by more than ``REWARD_MARGIN``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from slipstream.shared.error_budget import GROUPS_STAKE, GUARD_STAKE, RATINGS_STAKE
from slipstream_proxy.control.gate.baseline import CONTROL_MEMORY, PRIOR_EPISODES, Baseline, FadingMean, mean_of
from slipstream_proxy.control.gate.detector import LEAST_EPISODES, BettingDetector
from slipstream_proxy.control.gate.scale import RewardScale, number

if TYPE_CHECKING:
    from pydantic import JsonValue

MAX_GROUPS: Final = 32
"""Groups that are looked at, at most."""
REWARD_MARGIN: Final = 0.1
"""Of the rewards' range."""
MIN_GROUP_RUNS, MIN_GROUP_SHARE = 20, 0.02
"""Runs of a group, and its share of the traffic, from which on it is looked at. Below half the share, or half of the
share of another one, it makes room.
"""
LONE_GROUP_GROWTH: Final = 2.5
"""Growth of one group's evidence that is as suspicious as that of all together at 1."""
SUSPICION_ERRORS, PRIOR_RUNS, MAX_PRIOR_RUNS = -2.0, 3.0, 20.0
"""Standard errors, at most, of a reward of any kind, by which a group's loss is larger than ``REWARD_MARGIN`` where
it is
suspicious: it moves shares and holds back an acceptance, and takes nothing back. And the runs of the reference that its
known mean is worth, at least and at most.
"""
KNOWN_EVIDENCE: Final = 100.0
"""As ``MAX_PRIOR_RUNS``, where only an acceptance waits."""
OWN_RUNS, BEST_RUNS, ALL_RUNS = 12, 100, 2500
"""Runs of each group on trial that "better on the whole" waits for; and those without which the best version stays: of
a small group its part of ``ALL_RUNS``.
"""
REMEMBERED_RUNS: Final = 2000
"""Runs, at most, that shares of the traffic are taken from."""


class GroupSlot:
    """One group's bets. Values are in the scale's units, 0 to 1."""

    def __init__(self, name: str, at: int) -> None:
        self.name = name
        self.baseline = Baseline()
        self.best = FadingMean(CONTROL_MEMORY)
        """Of the best version."""
        self.detectors = [
            BettingDetector(1, GROUPS_STAKE.at_first / MAX_GROUPS, 0.0, shifts=False, margin=REWARD_MARGIN)
            for _ in range(2)
        ]
        """Against the control, and against the best version."""
        self.earned = at
        """The run up to which credit was earned."""

    def expected(self, otherwise: float, *, best: bool) -> float:
        """The control's mean, or the best version's. ``otherwise``: what is expected where few of the group's runs are
        known.
        """
        known = self.best if best else self.baseline.control
        return (known.value * known.n + PRIOR_EPISODES * otherwise) / (known.n + PRIOR_EPISODES)

    def errors(self, *, best: bool, most: float = MAX_PRIOR_RUNS) -> float:
        """Standard errors by which its rewards are above the reference's less ``REWARD_MARGIN``: negative where it
        loses.
        """
        bets = self.detectors[best]
        if not bets.n_tested:
            return 0.0
        known = self.best if best else self.baseline.control
        reference = bets.n_reference + min(max(known.n, PRIOR_RUNS), most)
        loss = bets.sum_tested / bets.n_tested - bets.sum_reference / reference
        return (loss + REWARD_MARGIN) / (0.5 * math.sqrt(1.0 / bets.n_tested + 1.0 / reference))

    def earn(self, at: int) -> None:
        """Each run of any group earns credit for the next start."""
        for detector in self.detectors:
            detector.credit = min(
                detector.credit + (at - self.earned) * GROUPS_STAKE.per_run / MAX_GROUPS, detector.lump
            )
        self.earned = at

    def give(self, name: str) -> None:
        """To another group."""
        self.name, self.baseline, self.best = name, Baseline(), FadingMean(CONTROL_MEMORY)
        for detector in self.detectors:
            detector.reset()


class GroupWatch:
    def __init__(self, given: frozenset[str] = frozenset()) -> None:
        self.given = given
        """By a person: a loss of these alone speaks against nothing."""
        self.slots: dict[str, GroupSlot] = {}
        self.counts: dict[str, float] = {}
        self.first: dict[str, int] = {}
        """Group → the run in which it was first seen: a new customer's share counts from there."""
        self.total = 0.0
        self.seen = 0

    def count(self, groups: Sequence[str]) -> None:
        """A run of these groups is counted."""
        self.seen += 1
        self.total += 1.0
        for name in groups:
            n = self.counts[name] = self.counts.get(name, 0.0) + 1.0
            since = self.seen - self.first.setdefault(name, self.seen)
            if name not in self.slots and n >= max(MIN_GROUP_RUNS, MIN_GROUP_SHARE * min(self.total, since)):
                self._look_at(name)
        if self.total >= REMEMBERED_RUNS:
            self.total /= 2.0
            self.counts = {name: n / 2.0 for name, n in self.counts.items() if n > 1.0}
            self.first = {name: self.first.get(name, 0) for name in self.counts}

    def _look_at(self, name: str) -> None:
        if len(self.slots) < MAX_GROUPS:
            self.slots[name] = GroupSlot(name, self.seen)
            return
        least = min(self.slots, key=lambda known: self.counts.get(known, 0.0))
        if self.counts.get(least, 0.0) < 0.5 * max(MIN_GROUP_SHARE * self.total, self.counts[name]):
            slot = self.slots.pop(least)
            slot.earn(self.seen)
            slot.give(name)
            self.slots[name] = slot

    def see(
        self,
        groups: Sequence[str],
        x: float,
        expected: float,
        tested: bool,
        share: float,
        *,
        best: bool,
        partial: bool = False,
    ) -> None:
        """As ``BettingDetector.see``. ``best``: the reference is the best version."""
        for name in groups:
            if (slot := self.slots.get(name)) is not None:
                slot.earn(self.seen)
                slot.detectors[best].see(x, slot.expected(expected, best=best), tested, share, partial)

    def learn(self, groups: Sequence[str], x: float, *, tested: bool) -> None:
        """As ``Baseline.see``."""
        for name in groups:
            if (slot := self.slots.get(name)) is not None:
                slot.baseline.see(x, "", tested=tested)

    def learn_best(self, groups: Sequence[str], x: float) -> None:
        """A run of the best version."""
        for name in groups:
            if (slot := self.slots.get(name)) is not None:
                slot.best.see(x)

    def accept(self) -> None:
        """What was on trial is the control from now on."""
        for slot in self.slots.values():
            slot.baseline.accept()

    def move_best(self, *, control: bool) -> None:
        """Another version is the best one. ``control``: it is the control."""
        for slot in self.slots.values():
            known = slot.baseline.control
            slot.best = FadingMean(CONTROL_MEMORY, known.value, known.n if control else 0.0)

    def rescale(self, before_low: float, before_high: float, low: float, high: float) -> None:
        """As ``Baseline.rescale``."""
        for slot in self.slots.values():
            slot.baseline.rescale(before_low, before_high, low, high)
            slot.best.rescale(before_low, before_high, low, high)

    def start(self) -> None:
        """As ``BettingDetector.start``."""
        for slot in self.slots.values():
            slot.earn(self.seen)
            for detector in slot.detectors:
                detector.start()

    def forget(self, *, rewards: bool) -> None:
        """As ``BettingDetector.forget``. ``rewards``: they mean something else, so what is expected is forgotten."""
        for slot in self.slots.values():
            if rewards:
                slot.baseline, slot.best = Baseline(), FadingMean(CONTROL_MEMORY)
            slot.earn(self.seen)
            for detector in slot.detectors:
                detector.forget()

    def reset(self, *, best: bool, fresh: bool = False) -> None:
        """As ``BettingDetector.reset``, of the evidence against the best version or against the control."""
        for slot in self.slots.values():
            slot.detectors[best].reset(fresh=fresh)

    def _heard(self) -> list[GroupSlot]:
        return [slot for slot in self.slots.values() if slot.name not in self.given]

    def wealth(self, *, best: bool) -> float:
        return sum(slot.detectors[best].wealth for slot in self._heard())

    def suspicion(self, *, best: bool) -> float:
        """Growth of the evidence of all groups together, or of the worst one, for each unit put in: 1 without
        evidence.
        """
        found = [slot.detectors[best] for slot in self._heard()]
        put = sum(detector.put for detector in found)
        if put <= 0.0:
            return 1.0
        return max(self.wealth(best=best) / put, max(d.growth() for d in found) / LONE_GROUP_GROWTH)

    def is_short(self, *, best: bool) -> bool:
        """Whether some group loses, as far as is seen."""
        return any(slot.errors(best=best) < SUSPICION_ERRORS for slot in self._heard())

    def doubted(self) -> tuple[str, BettingDetector] | None:
        """→ (group, its bets) of the one that is most likely to lose, where so large a loss is not the chance of the
        many that are looked at: the largest of n such errors is about √(2 ln n). None: there is none.
        """
        heard = self._heard()
        least = max(math.sqrt(2.0 * math.log(max(len(heard), 1))) - 1.0, 0.5)
        worst, found = -1.0, None
        for slot in heard:
            for best in (False, True):
                errors = min(
                    slot.errors(best=best, most=KNOWN_EVIDENCE) / least, slot.errors(best=best) / -SUSPICION_ERRORS
                )
                if errors < worst:
                    worst, found = errors, (slot.name, slot.detectors[best])
        return found

    def is_heard(self, *, best: bool) -> bool:
        """Whether every group that still comes had runs enough to show that it fails."""
        least = 0.5 * MIN_GROUP_SHARE * self.total
        coming = [(slot, n) for slot in self._heard() if (n := self.counts.get(slot.name, 0.0)) >= least]
        return all(
            slot.detectors[best].n_tested >= (min(BEST_RUNS, ALL_RUNS * n / self.total) if best else OWN_RUNS)
            for slot, n in coming
        )

    def worst(self, *, best: bool) -> tuple[str, BettingDetector] | None:
        """→ (group, its bets) with the most evidence; None: no group is looked at."""
        found = max(self._heard(), key=lambda slot: slot.detectors[best].wealth, default=None)
        return None if found is None else (found.name, found.detectors[best])

    def dump(self) -> dict[str, JsonValue]:
        slots: list[JsonValue] = [
            [s.name, s.earned, s.baseline.dump(), *(d.dump() for d in s.detectors), [s.best.value, s.best.n]]
            for s in self.slots.values()
        ]
        counts: dict[str, JsonValue] = {"counts": {**self.counts}, "first": {**self.first}}
        return {"slots": slots, **counts, "total": self.total, "seen": self.seen}

    def load(self, kept: JsonValue) -> None:
        """None, of a program that did not look at groups: it begins now."""
        if not isinstance(kept, dict):
            return
        slots, counts, total, seen = kept["slots"], kept["counts"], kept["total"], kept["seen"]
        if not isinstance(slots, list) or not isinstance(counts, dict):
            raise TypeError("groups of another shape")
        self.counts = {name: number(n) for name, n in counts.items()}
        self.total, self.seen = number(total), int(number(seen))
        first = kept.get("first")
        self.first = {name: int(number(n)) for name, n in first.items()} if isinstance(first, dict) else {}
        self.slots = {}
        for one in slots:
            if not isinstance(one, list) or len(one) not in (5, 6) or not isinstance(one[2], dict):
                raise TypeError("groups of another shape")
            slot = self.slots[str(one[0])] = GroupSlot(str(one[0]), int(number(one[1])))
            slot.baseline.load(one[2])
            for detector, state in zip(slot.detectors, one[3:5], strict=True):
                detector.load(state)
            for best in one[5:]:
                slot.best = mean_of(CONTROL_MEMORY, best)


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

    def see(self, value: float, task: str, tested: bool, share: float) -> None:
        unit = self.scale.unit(value)
        x = 1.0 - unit if self.bad == "up" else unit
        if self.name in SHARE_MEASURES:
            rare = 1.0 - self.baseline.control.value if self.bad == "up" else self.baseline.control.value
            self.detector.margin = min(max(rare, LEAST_MARGIN), GUARD_MARGIN)
        partial = min(arm.value for arm in self.known) < KNOWN_SHARE
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

    def errors(self) -> float:
        """As ``GroupSlot.errors``. A share spreads as its own mean says."""
        bets = self.detector
        if bets.n_tested < LEAST_EPISODES:
            return 0.0
        reference = bets.n_reference + min(max(self.baseline.control.n, PRIOR_RUNS), KNOWN_EVIDENCE)
        loss = bets.sum_tested / bets.n_tested - bets.sum_reference / reference
        mean = (self.sums[1] + 1.0) / (bets.n_tested + 2.0) if self.name in SHARE_MEASURES else 0.5
        spread = math.sqrt(mean * (1.0 - mean))
        return (loss + bets.margin) / (spread * math.sqrt(1.0 / bets.n_tested + 1.0 / reference))

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
            value = measures.get(guard.name)
            if value is not None:
                guard.see(value, task, tested, share)
            guard.known[tested].see(float(value is not None))

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

    def doubted(self, errors: float = WAITING_ERRORS) -> Guard | None:
        """The guard that seems worst, where it is worse by more than so many standard errors; None: there is none."""
        found = min(self._heard(), key=lambda guard: guard.errors(), default=None)
        return found if found is not None and found.errors() < errors and found.means() else None

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


class RatingWatch:
    """Whether users rate what is on trial as often as the control, where not all runs get a reward.

    Null hypothesis: given the past, a run is rated with one probability in both arms. It has two bets, with an error
    level of ``gate.alpha`` for both together, of which no verdict depends: a person is asked.
    """

    def __init__(self) -> None:
        self.bets = [
            BettingDetector(sign, RATINGS_STAKE.at_first / 2.0, RATINGS_STAKE.per_run, shifts=False) for sign in (1, -1)
        ]
        self.counts = [0, 0, 0, 0]
        """Runs of the control, those of them that are rated, and the same of what is on trial."""

    def see(self, rated: bool, expected: float, tested: bool, share: float) -> None:
        """As ``BettingDetector.see``. ``expected``: the share of the control's runs that are rated."""
        self.counts[2 * tested] += 1
        self.counts[2 * tested + 1] += rated
        for bets in self.bets:
            bets.see(float(rated), expected, tested, share)

    def evidence(self) -> float:
        """That the rates differ, either way."""
        return sum(bets.wealth for bets in self.bets)

    def shares(self) -> tuple[float, float] | None:
        """→ (of the control's runs, of those on trial) that are rated. None: an arm is empty."""
        control, rated, tested, also = self.counts
        return (rated / control, also / tested) if control and tested else None

    def dump(self) -> dict[str, JsonValue]:
        return {"bets": [bets.dump() for bets in self.bets], "counts": [*self.counts]}

    def load(self, kept: JsonValue) -> None:
        """None, of a program that did not look: it begins now."""
        if not isinstance(kept, dict):
            return
        counts, known = kept["counts"], kept["bets"]
        if not isinstance(counts, list) or not isinstance(known, list):
            raise TypeError("rates of another shape")
        self.counts = [int(number(n)) for n in counts]
        for bets, state in zip(self.bets, known, strict=True):
            bets.load(state)
