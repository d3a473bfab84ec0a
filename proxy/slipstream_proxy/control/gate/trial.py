"""A trial: runs in the order of their assignment go in, verdicts come out, and versions move as they say.

Evidence of what is on trial lasts over versions. It ends when the control, or the best version, moves.
"""

from __future__ import annotations

import math
from typing import Final

from slipstream_proxy.assignment import BEST_ARM
from slipstream_proxy.control.gate import comparison
from slipstream_proxy.control.gate.baseline import Baseline
from slipstream_proxy.control.gate.detector import Missing, SeenRun
from slipstream_proxy.control.gate.line import BORNE_OUT
from slipstream_proxy.control.gate.rules import ArmOutcome, Decision, HeldOut
from slipstream_proxy.control.gate.scale import RewardScale
from slipstream_proxy.control.gate.state import TrialState
from slipstream_proxy.control.gate.suspicion import MAX_WAIT_SETTLES, is_frozen
from slipstream_proxy.control.gate.verdict import beats_best, is_sliding, lacks_own, verdict_on

HOLD_REST: Final = 9
"""After newer versions had to wait for the served one's own rewards, they do not for at least so many times the runs
that this took: where runs are as long as a step, each wait is several versions long, and the trainer's runs grow old.
"""
MIN_HELD_OUT_RUNS: Final = 16
"""Held-out runs on each side before they say anything."""
SHRUNK_RANGE_SHARE: Final = 1 / 3
"""Of the range of rewards: what was counted on a wider one does not help to accept a version."""


class GateTrial(TrialState):
    # what happens to versions

    def serve(self, version: int) -> None:
        """A new version is on trial. The evidence goes on; its first finished episode is a new start."""
        self.tried = version
        if self.asked is not None:
            self.held = self.runs.seen - self.asked
        self.silent, self.asked, self.evidence.latched = False, None, ""
        self.borne_out = self.deadline.borne_out
        self.runs.forget_own()
        self.undecided += 1

    def waits(self, pace: str | int) -> bool:
        """Whether a newer version that has come is to wait (``gate.pace``, or a guard). What may still be chance holds
        it back no longer than ``MAX_WAIT_SETTLES`` times ``settle`` episodes.
        """
        if is_frozen(self):
            return True
        if not isinstance(pace, str):
            return self.on_trial and self.undecided >= pace
        rested = self.runs.since >= self.settings.settle + HOLD_REST * self.held
        if pace != "careful" or not (is_sliding(self) or (rested and lacks_own(self))):
            return False
        if self.asked is None:
            self.asked = self.runs.seen
        return self.runs.seen - self.asked < MAX_WAIT_SETTLES * self.settings.settle

    def accept(self, *, by_hand: bool = False) -> None:
        """The version on trial is the control from now on, and the best one too if it has beaten that. ``by_hand``: it
        has not been shown to be good, so the evidence against what comes next begins as at the start.
        """
        proven = beats_best(self)
        self.control = self.floor = self.tried
        for known in (self.evidence.groups, self.evidence.guards):
            known.accept()
        self.baseline.accept()
        self.deadline.accept()
        self.runs.since = self.runs.late = self.undecided = 0
        self.evidence.move_control(fresh=by_hand)
        if proven:
            self.move_best(self.tried)
        else:
            self.evidence.mark()

    def roll_back(self, to_best: bool, made: int) -> None:
        """What is served is taken back: to the control, or to the best version. ``made``: the newest version that there
        is.

        Versions up to there go on from the one that is taken back, so they are not tried.
        """
        self.floor = self.best_floor = max(made, self.tried, self.newest, self.floor)
        self._forget_trial()
        if to_best or self.control == self.best:
            self.move_best(self.best, fresh=True)
            self.control = self.best
        else:
            self.evidence.lower_to_accepted()
        self.evidence.move_control(fresh=True)
        self.tried = self.control

    def decide_by_hand(self, control: int) -> None:
        """A person, or an engine's refusal, has chosen. That version is control and best; all evidence begins again."""
        self.floor = self.best_floor = max(self.tried, self.newest, self.floor, control)
        self.control = self.tried = control
        self._forget_trial()
        self.move_best(control, fresh=True)
        self.evidence.move_control(fresh=True)

    def keep_from(self, groups: frozenset[str], given: frozenset[str] = frozenset()) -> None:
        """What is served was taken back for these groups alone, or was given back to one. The evidence that is left is
        about other runs, so it begins again, with no new wealth. ``given``: by a person; no loss of theirs alone speaks
        against it.
        """
        self.evidence.groups.given = given
        if groups != self.kept_from:
            self.kept_from = groups
            self.runs.forget_trial()
            self.evidence.forget(rewards=False)

    def move_best(self, version: int, *, fresh: bool = False) -> None:
        """Slides are measured against this version from now on."""
        self.best = version
        self.best_floor = max(self.best_floor, version)
        self.evidence.move_best(control=version == self.control, fresh=fresh)

    def _forget_trial(self) -> None:
        self.undecided = 0
        self.runs.forget_trial()
        self.deadline.forget()

    # what is told

    def hold_out(self, best: HeldOut, later: HeldOut) -> None:
        """Held-out runs of the best version, and of those after it. They are no evidence for a verdict: they only say
        how many new runs the best version still needs. Where rewards meant something else before, they say nothing.
        """
        self.ahead, least = 0.0, 0.05 * self.scale.span
        if min(best.n, later.n) >= MIN_HELD_OUT_RUNS and not self.rescaled and least > 0.0:
            error = math.sqrt(sum(max(runs.std, least) ** 2 / runs.n for runs in (best, later)))
            self.ahead = (later.mean - best.mean) / error

    def declare(self, at: float) -> bool:
        """People say that rewards mean something else from then on. → Whether that is new."""
        if at <= self.declared:
            return False
        self.declared = at
        self.rewards_changed(at)
        return True

    def rewards_changed(self, at: float) -> None:
        """Rewards are on another scale, of runs that began after ``at``: those of others may be on either. The evidence
        begins again: on two scales, one reward means two things.
        """
        self.rescaled += 1
        self.fresh = max(self.fresh, at)
        self.widest, self.asked = 0.0, None
        if not self.scale.fixed:
            self.scale = RewardScale()
        self.baseline = Baseline()
        self.watch.begin([])
        self.runs.forget_trial()
        self.evidence.forget(rewards=True)

    # runs

    def observe(self, outcome: ArmOutcome) -> Decision:
        """The next episode in the order of assignment. Its reward changes scale and baseline after it was counted.

        One that is not ``finished`` counts as the lowest reward.
        """
        self.runs.seen += 1
        compared = comparison.with_control(self, outcome)
        if not outcome.finished:
            self.deadline.lack()
        partial, rewarded = self.deadline.sparse, self.deadline.rewarded
        silent = outcome.at < self.fresh or not self.kept_from.isdisjoint(outcome.groups)
        silent = silent or comparison.straggles(self, outcome)
        if silent:
            _see_duration(self, outcome, tested=outcome.version > self.floor)
            return verdict_on(self)
        self._begin(outcome)
        watched = outcome.finished and not self.scale.fixed and comparison.is_reference(self, outcome)
        changed = watched and self.watch.see(outcome.reward, outcome.task)
        unrated = partial and not outcome.finished
        missing = self._missing(outcome, partial)
        if not unrated:
            self.evidence.groups.count(outcome.groups)
        x = self.scale.unit(outcome.reward) if outcome.finished else 0.0
        known = None if unrated else x
        expected = self.baseline.of(outcome.task)
        if compared is not None:
            tested, share = compared
            if tested and not unrated:
                self._count(outcome, x, expected)
            run = SeenRun(known, expected, tested, share, partial, missing)
            self.evidence.see_control(outcome, run, rewarded)
            if self.on_trial:
                self.evidence.latch(self.settings.alpha)
        if (beside := comparison.with_best(self, outcome)) is not None:
            self.evidence.see_best(outcome, SeenRun(known, expected, *beside, partial, missing))
        if unrated:
            _see_duration(self, outcome, tested=outcome.version > self.floor)
        elif changed:  # it was counted as it stood: a run that is left out for its reward would bend the bets
            self.rewards_changed(outcome.at + (outcome.seconds or 0.0))
        else:
            self._learn(outcome, x, tested=compared is not None and compared[0])
        return verdict_on(self)

    def _missing(self, outcome: ArmOutcome, partial: bool) -> Missing:
        """What its reward, or that it lacks one, says of how many of the control's runs get theirs."""
        here = not (outcome.finished or partial or self.settings.missing_fails)
        more = BORNE_OUT[outcome.finished] if comparison.is_reference(self, outcome) else 0.0
        return Missing(here, self.deadline.borne_out + more)

    def _begin(self, outcome: ArmOutcome) -> None:
        """Wealth comes in with the first run for which chance could choose a newer version, whichever it chose and
        whatever its reward is: wealth that only the version's own first reward brought in would be a bet on that.
        """
        tried = outcome.version if outcome.tried is None else outcome.tried
        if tried > max(self.newest, self.floor):
            self.newest = tried
            self.evidence.start()

    def _count(self, outcome: ArmOutcome, x: float, expected: float) -> None:
        """An episode on trial."""
        runs = self.runs
        runs.since += 1
        runs.late += not outcome.finished
        if outcome.version == self.tried:
            runs.own += 1
            runs.own_late += not outcome.finished
            runs.own_above += x - expected
            runs.own_sum += x - min(self.baseline.of(outcome.task), self.baseline.of_tested(outcome.task))

    def _learn(self, outcome: ArmOutcome, x: float, *, tested: bool) -> None:
        """What is expected of later runs. ``tested``: it was counted as an episode on trial."""
        groups = self.evidence.groups
        gone = not tested and outcome.version <= self.floor and outcome.version != self.control
        if outcome.arm != BEST_ARM and not gone:
            late = tested or outcome.version > self.floor
            self.baseline.see(x, outcome.task, tested=late)
            groups.learn(outcome.groups, x, tested=late)
        if outcome.version == self.best:
            groups.learn_best(outcome.groups, x)
        _see_duration(self, outcome, tested=tested)
        low, high = self.scale.low, self.scale.high
        if outcome.finished and self.scale.see(outcome.reward):
            self.baseline.rescale(low, high, self.scale.low, self.scale.high)
            groups.rescale(low, high, self.scale.low, self.scale.high)
            self.widest = max(self.widest, self.scale.span)
            if 0.0 < self.scale.span < SHRUNK_RANGE_SHARE * self.widest:
                self.widest = self.scale.span  # runs that were counted before said little: a loss looked small
                self.runs.forget_trial()


def _see_duration(trial: TrialState, outcome: ArmOutcome, *, tested: bool) -> None:
    if outcome.finished and outcome.seconds is None:
        return
    if tested or outcome.version in (trial.control, trial.best):
        trial.deadline.see(outcome.seconds, outcome.version, tested=tested)
        if not tested and not outcome.finished and outcome.eid:
            trial.deadline.give_up(outcome.eid, outcome.at)
