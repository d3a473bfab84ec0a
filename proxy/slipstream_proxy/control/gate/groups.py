"""Bets on groups of runs: a gain elsewhere hides that one tag, or one task, got worse.

Each group that gets enough of the traffic has bets of its own (``detector``), against the control and against the best
version. Null hypothesis of each: given the past, its tested runs lose no more than ``REWARD_MARGIN``: a version that
gains on the whole may lose a little somewhere. Each factor is divided by its largest mean under that, so the bets stay
a supermartingale. The groups share a fixed part of the error level, whatever their number: each gets 1 /
``MAX_GROUPS`` of it, and a sum of supermartingales is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from slipstream.shared.error_budget import GROUPS_STAKE
from slipstream_proxy.control.gate.baseline import CONTROL_MEMORY, PRIOR_EPISODES, Baseline, FadingMean, mean_of
from slipstream_proxy.control.gate.detector import BettingDetector, SeenRun
from slipstream_proxy.control.gate.scale import number

if TYPE_CHECKING:
    from pydantic import JsonValue

MAX_GROUPS: Final = 64
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
it is suspicious: it moves shares and holds back an acceptance, and takes nothing back. And the runs of the reference
that its known mean is worth, at least and at most.
"""
KNOWN_EVIDENCE: Final = 100.0
"""As ``MAX_PRIOR_RUNS``, where only an acceptance waits."""
OWN_RUNS, BEST_RUNS, ALL_RUNS = 12, 100, 2500
"""Runs of each group on trial that "better on the whole" waits for; and those without which the best version stays: of
a small group its part of ``ALL_RUNS``.
"""
SHOWN_RUNS: Final = 5
"""Runs of each group on trial that every acceptance waits for: a group that fails altogether shows in so many."""
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
        """The control's mean, or the best version's. ``otherwise``: what is expected where few of the
        group's runs are known.
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

    def loses(self, *, best: bool) -> bool:
        """Whether ``errors`` may be negative: what most groups are asked for costs little."""
        bets = self.detectors[best]
        n = bets.n_tested
        return n > 0 and bets.sum_tested / n + REWARD_MARGIN < max(bets.sum_reference, 0.0) / max(bets.n_reference, 1)

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

    def see(self, groups: Sequence[str], run: SeenRun, *, best: bool) -> None:
        """A run of these groups. ``best``: the reference is the best version."""
        x, expected, tested, share, partial, missing = run
        for name in groups:
            if (slot := self.slots.get(name)) is not None:
                slot.earn(self.seen)
                slot.detectors[best].see(x, slot.expected(expected, best=best), tested, share, partial, missing)

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
        found = list(self.slots.values())
        return [slot for slot in found if slot.name not in self.given] if self.given else found

    def wealth(self, *, best: bool) -> float:
        total = 0.0
        for slot in self._heard():
            total += slot.detectors[best].wealth
        return total

    def suspicion(self, *, best: bool) -> float:
        """Growth of the evidence of all groups together, or of the worst one, for each unit put in: 1 without
        evidence.
        """
        put = wealth = most = 0.0
        for slot in self._heard():
            bets = slot.detectors[best]
            put += bets.put
            wealth += bets.suspected()
            most = max(most, bets.growth())
        return max(wealth / put, most / LONE_GROUP_GROWTH) if put > 0.0 else 1.0

    def is_short(self, *, best: bool) -> bool:
        """Whether some group loses, as far as is seen."""
        return any(slot.loses(best=best) and slot.errors(best=best) < SUSPICION_ERRORS for slot in self._heard())

    def doubted(self) -> tuple[str, BettingDetector] | None:
        """→ (group, its bets) of the one that is most likely to lose, where so large a loss is not the chance of the
        many that are looked at: the largest of n such errors is about √(2 ln n). None: there is none.
        """
        heard = self._heard()
        least = max(math.sqrt(2.0 * math.log(max(len(heard), 1))) - 1.0, 0.5)
        worst, found = -1.0, None
        for slot in heard:
            for best in (False, True):
                if not slot.loses(best=best):
                    continue
                errors = min(
                    slot.errors(best=best, most=KNOWN_EVIDENCE) / least, slot.errors(best=best) / -SUSPICION_ERRORS
                )
                if errors < worst:
                    worst, found = errors, (slot.name, slot.detectors[best])
        return found

    def is_heard(self, *, best: bool, least: int = OWN_RUNS) -> bool:
        """Whether every group that still comes had runs enough to show that it fails: ``least`` of those on trial, or,
        beside the best version, ``BEST_RUNS``.
        """
        few = 0.5 * MIN_GROUP_SHARE * self.total
        coming = [(slot, n) for slot in self._heard() if (n := self.counts.get(slot.name, 0.0)) >= few]
        return all(
            slot.detectors[best].n_tested >= (min(BEST_RUNS, ALL_RUNS * n / self.total) if best else least)
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
