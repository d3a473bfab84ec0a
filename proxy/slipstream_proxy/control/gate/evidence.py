"""All bets of a trial: rewards, timeouts, groups, guards and ratings, beside the control and beside the best version.

Evidence lasts over versions. It ends where the question ends: when the control, or the best version, is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.shared.error_budget import BEST_STAKE, CONTROL_STAKE, TIMEOUTS_STAKE
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.gate.groups import GroupWatch
from slipstream_proxy.control.gate.guards import GuardWatch
from slipstream_proxy.control.gate.ratings import RatingWatch

if TYPE_CHECKING:
    from pydantic import JsonValue

    from slipstream.shared.error_budget import Stake
    from slipstream_proxy.control.gate.detector import SeenRun
    from slipstream_proxy.control.gate.rules import ArmOutcome, TrialSettings

HUNG_MARGIN: Final = 0.1
"""Share of all runs by which more than the control's have no reward at their deadline, where that speaks against it."""
SLIDE_VERSIONS: Final = 3
"""Newest acceptances since which a slide is looked for."""


class Evidence:
    marks: list[JsonValue]
    """The evidence against the best version as it was when each of the last versions was accepted."""

    def __init__(self, settings: TrialSettings) -> None:
        self.settings = settings
        self.worse = _on_rewards(1, CONTROL_STAKE, settings)
        self.better = _on_rewards(-1, CONTROL_STAKE, settings)
        self.worse_best = _on_rewards(1, BEST_STAKE, settings)
        self.better_best = _on_rewards(-1, BEST_STAKE, settings)
        self.hung = BettingDetector(
            1, TIMEOUTS_STAKE.at_first, TIMEOUTS_STAKE.per_run, shifts=False, margin=HUNG_MARGIN
        )
        self.groups, self.guards, self.ratings = GroupWatch(), GuardWatch(settings.guards), RatingWatch()
        self.latched = ""
        """The guard that was shown to be worse on trial: a person decides, whatever later runs say."""
        self.mark(anew=True)

    def against(self, *, best: bool) -> float:
        """All evidence against what is served, beside the best version or beside the control."""
        wealth = self.worse_best.wealth if best else self.worse.wealth + self.hung.wealth
        return wealth + (self.groups.wealth(best=best) if self.settings.by_group else 0.0)

    def suspected(self) -> float:
        """As ``against``, of all runs together, with each that lacks a reward as the worst, whatever is shown."""
        return self.worse.suspected() + self.hung.suspected() + self.worse_best.suspected()

    # what runs say

    def see_control(self, outcome: ArmOutcome, run: SeenRun, rewarded: float) -> None:
        """``run``: beside the control. ``rewarded``: share of the control's runs with a reward."""
        x, expected, tested, share, partial, missing = run
        self.worse.see(x, expected, tested, share, partial, missing)
        self.better.see(x, expected, tested, share, partial, missing)
        if partial:
            self.ratings.see(outcome.finished, rewarded, tested, share)
        else:
            self.hung.see(float(outcome.finished), rewarded, tested, share, missing=missing)
        self.groups.see(outcome.groups, run, best=False)
        self.guards.see(outcome.measures if x is not None else {}, outcome.task, tested, share)

    def see_best(self, outcome: ArmOutcome, run: SeenRun) -> None:
        """``run``: beside the best version."""
        x, expected, tested, share, partial, missing = run
        self.worse_best.see(x, expected, tested, share, partial, missing)
        self.better_best.see(x, expected, tested, share, partial, missing)
        self.groups.see(outcome.groups, run, best=True)

    def latch(self, alpha: float) -> None:
        """Remember the guard that is shown to be worse."""
        if not self.latched and (guard := self.guards.alarmed(alpha)) is not None:
            self.latched = guard.name

    # what becomes of it

    def start(self) -> None:
        """The first run, of any arm, while a newer version is on trial is about to be counted."""
        for detector in (self.worse, self.better, self.hung, self.worse_best, self.better_best):
            detector.start()
        self.groups.start()
        self.guards.start()

    def mark(self, *, anew: bool = False) -> None:
        """A version was accepted. ``anew``: the question is another one, so earlier marks say nothing."""
        self.kept: list[JsonValue] = [detector.dump() for detector in (self.worse_best, self.better_best)]
        marks: list[JsonValue] = [] if anew else self.marks
        self.marks = [*marks, self.kept[0]][-SLIDE_VERSIONS:]

    def move_control(self, *, fresh: bool = False) -> None:
        """Another version is the control. ``fresh``: with all the credit that there was at first."""
        for detector in (self.worse, self.better, self.hung):
            detector.reset(fresh=fresh)
        self.groups.reset(best=False, fresh=fresh)
        self.guards.reset(fresh=fresh)
        self.ratings = RatingWatch()
        self.latched = ""

    def move_best(self, *, control: bool, fresh: bool = False) -> None:
        """Another version is the best one. ``control``: it is the control."""
        self.groups.move_best(control=control)
        self.worse_best.reset(fresh=fresh)
        self.better_best.reset(fresh=fresh)
        self.groups.reset(best=True, fresh=fresh)
        self.mark(anew=True)

    def lower_to_accepted(self) -> None:
        """Beside the best version, it is what it was at the last acceptance: what came since was about a version that
        is gone.
        """
        for detector, kept in zip((self.worse_best, self.better_best), self.kept, strict=True):
            detector.lower_to(kept)
        self.groups.reset(best=True)

    def forget(self, *, rewards: bool) -> None:
        """It begins again with no new wealth. ``rewards``: they mean something else, so only what is no reward stays.
        Else it is about other runs.
        """
        for detector in (self.worse, self.better, self.worse_best, self.better_best):
            detector.forget()
        self.groups.forget(rewards=rewards)
        if not rewards:
            self.hung.forget()
            self.guards.forget()
            self.latched = ""
        self.mark(anew=True)

    def dump(self) -> dict[str, JsonValue]:
        return {
            "evidence": [d.dump() for d in (self.worse, self.better, self.worse_best, self.better_best)],
            "hung": [*self.hung.dump()],
            "kept": [*self.kept],
            "marks": [*self.marks],
            "groups": self.groups.dump(),
            "guards": self.guards.dump(),
            "ratings": self.ratings.dump(),
            "latched": self.latched,
        }

    def load(self, kept: dict[str, JsonValue]) -> None:
        """Raises ``TypeError``, ``KeyError``, ``ValueError`` for what another version of this program wrote."""
        evidence, marked = kept["evidence"], kept["kept"]
        if not isinstance(evidence, list) or not isinstance(marked, list):
            raise TypeError("evidence of another shape")
        detectors = (self.worse, self.better, self.worse_best, self.better_best)
        for detector, state in zip(detectors, evidence, strict=True):
            detector.load(state)
        if "hung" in kept:
            self.hung.load(kept["hung"])
        self.groups.load(kept.get("groups"))
        self.guards.load(kept.get("guards"))
        self.ratings.load(kept.get("ratings"))
        self.latched = latched if isinstance(latched := kept.get("latched", ""), str) else ""
        if marked and not isinstance(marked[0], list):
            # an older program kept [wealth put in, *wealths] of the evidence against the best version alone
            marked = [[0.0, marked[0], *[0.0] * 6, *marked[1:]], self.better_best.dump()]
        if len(marked) != len(self.kept):
            raise TypeError("evidence of another shape")
        self.kept, self.marks = marked, [marked[0]]
        if isinstance(marks := kept.get("marks"), list) and marks:
            self.marks = marks


def _on_rewards(sign: int, stake: Stake, settings: TrialSettings) -> BettingDetector:
    return BettingDetector(sign, stake.at_first, stake.per_run, shifts=settings.shifts)
