"""The gate's state of one trained model: runs in the order of their assignment go in, verdicts and the control arms'
shares come out.

Three versions matter: the one on trial, the last accepted one (``control``), and the one that no later one was shown to
beat (``best``). Evidence of the trial against either lasts over versions. It ends when the control moves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from slipstream.shared.error_budget import BEST_STAKE, CONTROL_STAKE, TIMEOUTS_STAKE
from slipstream_proxy.assignment import BEST_ARM, CANDIDATE_ARM, CONTROL_ARM, LIVE_ARM
from slipstream_proxy.control.gate.baseline import Baseline
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.gate.line import Deadline
from slipstream_proxy.control.gate.rules import ArmOutcome, Decision, TrialSettings
from slipstream_proxy.control.gate.scale import RewardScale, ScaleWatch
from slipstream_proxy.control.gate.side_bets import WORSE_ERRORS, GroupWatch, Guard, GuardWatch, RatingWatch

if TYPE_CHECKING:
    from pydantic import JsonValue

HUNG_MARGIN = 0.1
"""Share of all runs by which more than the control's have no reward at their deadline, where that speaks against it."""
SILENT_SHARE = 0.9
"""Of the control, while no run of the version on trial has ended although the control's would have."""
MIN_SCALE_REWARDS = 32
"""Rewards on a new scale before which there is no verdict."""
YOUNG_EPISODES = 12
"""Finished episodes of a version before which the control gets ``YOUNG_SHARE``: a broken adapter shows at once."""
YOUNG_SHARE = 0.3
FIRST_SHARE = 0.5
"""Of the runs of those who go first: the others are what they are compared with."""
BEST_PART = 0.7
"""The best version's part of the held-out share, while control and best differ."""
MOST_SHARE = 0.5
MIN_OWN_EPISODES = 16
"""Finished episodes of a version itself before it may be accepted."""
TRUSTED_Z = -1.5
HOLD_GROWTH = 2.0
"""Growth of the evidence above which a newer version waits (``gate.pace = "careful"``), and above which the control,
not the best version, is what a rollback goes back to.
"""
HELD_OUT = 16
"""Held-out runs on each side before they say anything."""
HELD_SETTLES = 4
"""Times ``settle``: so many episodes on trial a loss of a group, or of a guard, that may still be chance holds back an
acceptance.
"""
MAX_WAIT_SETTLES = 20
"""Times ``settle``: so many episodes on trial, at most, an acceptance waits for what would show a loss."""
MAX_SLIDE = 0.05
"""Of the rewards' range: a larger loss beside the best version must be excluded before an acceptance. Three versions
that each lose 0.02 add up to more.
"""
SLIDE_VERSIONS = 3
"""Newest acceptances since which a slide is looked for."""
SEEN_ERRORS = 2.0
"""Standard errors between what was seen and a loss that would have been seen with 95 %: 1.65, and more because one
looks again and again.
"""
WAITING_PART = 0.4
"""Of the share that suspicion can give, where an acceptance waits for runs of the control, or of the best version."""
SHRUNK_RANGE_SHARE = 1 / 3
"""Of the range of rewards: what was counted on a wider one does not help to accept a version."""
OWN_Z = -2.0
"""A version whose own rewards lie further below those of both the control and the versions before it, in standard
errors, is not accepted yet.
"""


class HeldOut(NamedTuple):
    """Rewards of held-out runs."""

    n: int = 0
    mean: float = 0.0
    std: float = 0.0

    def joined(self, more: HeldOut) -> HeldOut:
        """All of them together."""
        n = self.n + more.n
        mean = (self.n * self.mean + more.n * more.mean) / max(n, 1)
        squares = sum(r.n * (r.std**2 + (r.mean - mean) ** 2) for r in (self, more))
        return HeldOut(n, mean, math.sqrt(squares / max(n, 1)))


class GateTrial:
    marks: list[JsonValue]
    """The evidence against the best version as it was when each of the last versions was accepted."""

    def __init__(self, settings: TrialSettings) -> None:
        self.settings = settings
        self.scale = RewardScale(*(settings.reward_range or (None, None)))
        self.watch = ScaleWatch()
        self.rescaled = 0
        """How often the rewards' scale was found or said to have changed."""
        self.declared = 0.0
        """When people last said so; seconds since the epoch."""
        self.fresh = 0.0
        """Runs that began before are no evidence: their rewards may be on another scale."""
        self.widest = 0.0
        """The widest range of rewards while ``since`` was counted."""
        self.baseline = Baseline()
        self.deadline = Deadline(settings.deadline, missing_fails=settings.missing_fails)
        self.worse = BettingDetector(1, CONTROL_STAKE.at_first, CONTROL_STAKE.per_run, shifts=settings.shifts)
        self.better = BettingDetector(-1, CONTROL_STAKE.at_first, CONTROL_STAKE.per_run, shifts=settings.shifts)
        self.worse_best = BettingDetector(1, BEST_STAKE.at_first, BEST_STAKE.per_run, shifts=settings.shifts)
        self.better_best = BettingDetector(-1, BEST_STAKE.at_first, BEST_STAKE.per_run, shifts=settings.shifts)
        self.hung = BettingDetector(
            1, TIMEOUTS_STAKE.at_first, TIMEOUTS_STAKE.per_run, shifts=False, margin=HUNG_MARGIN
        )
        self.groups, self.guards, self.ratings = GroupWatch(), GuardWatch(settings.guards), RatingWatch()
        self.control = self.best = self.tried = 0
        """Versions. ``tried`` equals ``control`` while nothing is on trial."""
        self.floor = self.best_floor = 0
        """Only later versions are evidence: what earlier ones did was another question's."""
        self.newest = 0
        """The newest version on trial that has a finished episode."""
        self.own = 0
        self.own_above = 0.0
        """Of the rewards of the version that is served, each minus what the control is expected to get."""
        self.own_sum = 0.0
        """Of the rewards of the version that is served, each minus what the control or the versions before it get."""
        self.since = 0
        """Episodes on trial that were counted since the control moved."""
        self.late = self.own_late = 0
        """Those of ``since`` and of ``own`` that had no reward before the deadline."""
        self.undecided = 0
        """Versions that were on trial since the last verdict."""
        self.seen = 0
        self.silent = False
        """No run of the version on trial has ended, although the control's would have: it gets few runs until then, or
        until they count as failed. From there on an even share tells the two apart soonest.
        """
        self.replayed: float | None = None
        """Growth of the evidence against the version on trial in its replay, which it passed. It moves shares alone:
        the bets are on rewards of users. None: it was not replayed.
        """
        self.kept_from: frozenset[str] = frozenset()
        """Groups for which alone what is served was taken back: their runs are no evidence."""
        self.given: frozenset[str] = frozenset()
        """Groups that a person gave what is served back to: no loss of theirs alone speaks against it."""
        self.latched = ""
        """The guard that was shown to be worse on trial: a person decides, whatever later runs say."""
        self.ahead = 0.0
        """Standard errors by which held-out runs of later versions are above those of the best one (``hold_out``)."""
        self.frozen_by_hand: bool | None = None  # as ``AdapterRegistry.frozen``
        self.asked: int | None = None
        """``seen`` when a newer version first had to wait for the one that is served."""
        self._mark(anew=True)

    def _mark(self, *, anew: bool = False) -> None:
        self.kept: list[JsonValue] = [detector.dump() for detector in (self.worse_best, self.better_best)]
        marks: list[JsonValue] = [] if anew else self.marks
        self.marks = [*marks, self.kept[0]][-SLIDE_VERSIONS:]

    @property
    def on_trial(self) -> bool:
        return self.tried != self.control

    # what new episodes get

    def shares(self) -> tuple[float, float]:
        """Shares of new episodes for (control, best); the rest is live. In canary mode the first is the candidate's: of
        all runs, or of those who go first (``is_among_first``).
        """
        s = self.settings
        apart = self.control != self.best
        share = (s.plan or [s.share])[self.stage] if s.canary else s.holdout
        share = FIRST_SHARE if self.is_among_first else share
        kept = s.holdout * BEST_PART if apart else 0.0
        if self.silent and self.on_trial and not self.own_late and share:
            return (min(share, 1.0 - SILENT_SHARE), kept) if s.canary else (SILENT_SHARE - kept, kept)
        if s.canary:
            share = share if self.on_trial else 0.0
            # the accepted version keeps at least as many: it is what both others are compared with
            most = max((1.0 - share) / 2.0 - kept, 0.0)
            return share, kept + most * max(self._by_best(), self._by_slide()) if apart and s.holdout else 0.0
        if not s.holdout or not (self.on_trial or apart):
            return 0.0, 0.0
        doubt = self._doubt()
        held = s.holdout if apart else s.holdout * doubt
        if self.on_trial and self.own < YOUNG_EPISODES and self.replayed is None:
            held = max(held, YOUNG_SHARE * max(doubt, 0.5))
        room = max(MOST_SHARE - held, 0.0)
        first = max(_suspicion(self.worse), self._by_group(best=False)) if self.on_trial else 0.0
        first = max(first, self._by_guard(), self._by_replay()) if self.on_trial else 0.0
        first = max(first, _grown(self.hung.growth())) if self.on_trial else 0.0
        first = 1.0 if self.silent and self.on_trial else first
        second = self._by_best()
        if not apart:
            return held + room * max(first, second, self._by_rare()), 0.0
        if not self.on_trial:
            return 0.0, held * doubt + room * second
        if first + second > 1.0:
            first, second = first / (first + second), second / (first + second)
        first = max(first, min(self._by_rare(), 1.0 - second))
        second = max(second, min(self._by_slide(), 1.0 - first))
        return held - kept + room * first, kept * doubt + room * second

    @property
    def stage(self) -> int:
        """Of the canary's plan: ``MIN_OWN_EPISODES`` finished episodes of the version lead to the next one, and doubt
        one back.

        A replay that says nothing against the version spares it the first one. All of that is known before an
        assignment, so it bends no bet.
        """
        spared = self.replayed is not None and not _grown(self.replayed)
        return max(
            0, min(self.own // MIN_OWN_EPISODES + spared, max(len(self.settings.plan), 1) - 1) - self.is_held_back
        )

    @property
    def is_held_back(self) -> bool:
        """Whether doubt keeps the canary one stage back."""
        return bool(self.doubts())

    def doubts(self) -> list[str]:
        """What holds the canary back, in words."""
        found = {
            "it seems to get less reward": _suspicion(self.worse),
            "a group seems to get less": self._by_group(best=False),
            "a guard is worse": self._by_guard(),
        }
        return [text for text, doubt in found.items() if doubt > 0.0]

    @property
    def is_among_first(self) -> bool:
        """Whether only those who go first may get the version on trial."""
        return self.settings.canary and bool(self.settings.first) and self.on_trial and self.stage == 0

    def _by_group(self, *, best: bool) -> float:
        """As ``_suspicion``, of the groups. What is seen of one holds back an acceptance, but only for a while."""
        if not self.settings.by_group:
            return 0.0
        short = self.since < HELD_SETTLES * self.settings.settle and self.groups.is_short(best=best)
        return 1.0 if short else _grown(self.groups.suspicion(best=best))

    def _by_guard(self) -> float:
        """As ``_suspicion``, of the guards."""
        if self.settings.guard_action == "say" or self.frozen_by_hand is False:
            return 0.0
        short = self.since < HELD_SETTLES * self.settings.settle and self.guards.doubted(WORSE_ERRORS) is not None
        return 1.0 if short or self.alarm is not None else _grown(self.guards.growth())

    def _by_replay(self) -> float:
        """As ``_suspicion``, of the replay, until the version's own runs say more."""
        return _grown(self.replayed) if self.replayed is not None and self.own < MIN_OWN_EPISODES else 0.0

    def _by_best(self) -> float:
        """As ``_suspicion``, beside the best version."""
        return max(_suspicion(self.worse_best), self._by_group(best=True))

    def _by_slide(self) -> float:
        """As ``_suspicion``: only a slide from the best version, which may still be there, keeps it from being
        accepted.
        """
        return WAITING_PART if self._is_due() and self.may_slide() else 0.0

    def _by_rare(self) -> float:
        """As ``_by_slide``, of a loss of the little that the control gets."""
        return WAITING_PART if self._is_due() and self.may_lose_half() else 0.0

    def _is_due(self) -> bool:
        """Whether it has had the runs after which a version is accepted, if nothing speaks against it."""
        return self.on_trial and self.since >= self.settings.settle

    def _doubt(self) -> float:
        """Part of the best version's share that it keeps: less, the more the rewards, or those of held-out runs, say
        that it was beaten.
        """
        growth, ahead = self.better_best.growth(), self.ahead
        return 0.25 if growth >= 10.0 or ahead >= 3.0 else 0.5 if growth >= 3.0 or ahead >= 2.0 else 1.0

    def arms(self) -> list[tuple[int, str, float]]:
        """(version, arm, share) of every arm beside the live one, as ``assign`` takes them."""
        first, second = self.shares()
        if self.settings.canary:
            found = [(self.tried, CANDIDATE_ARM, first), (self.best, BEST_ARM, second)]
        else:
            found = [(self.control, CONTROL_ARM, first), (self.best, BEST_ARM, second)]
        return [(version, arm, round(share, 6)) for version, arm, share in found if share > 0.0]

    @property
    def live(self) -> int:
        """What an episode of no other arm gets."""
        return self.control if self.settings.canary else self.tried

    def waits(self, pace: str | int) -> bool:
        """Whether a newer version that has come is to wait (``gate.pace``, or a guard)."""
        if self.frozen:
            return True
        if not isinstance(pace, str):
            return self.on_trial and self.undecided >= pace
        return pace == "careful" and self._is_held()

    def _is_held(self) -> bool:
        """A slow slide is likely, or only rewards of the served version itself are missing for it to be accepted: where
        rewards come later than versions, none would ever be. It is held no longer than 20 times ``settle`` episodes.
        """
        slides = self.tried != self.best and self.worse_best.growth() > HOLD_GROWTH
        due = self._is_due() and self.own < MIN_OWN_EPISODES and self.trusted()
        if not slides and not due:
            return False
        if self.asked is None:
            self.asked = self.seen
        return self.seen - self.asked < MAX_WAIT_SETTLES * self.settings.settle

    @property
    def alarm(self) -> Guard | None:
        """The guard that was shown to be worse on trial than with the control; None: there is none."""
        return self.guards.of(self.latched) if self.on_trial else None

    @property
    def frozen(self) -> bool:
        """A person has to decide on the version on trial."""
        if self.frozen_by_hand is not None:
            return self.frozen_by_hand
        return self.settings.guard_action == "freeze" and self.alarm is not None

    # what happens to versions

    def serve(self, version: int) -> None:
        """A new version is on trial. The evidence goes on; its first finished episode is a new start."""
        self.tried = version
        self.silent = False
        self.latched = ""
        self._forget_own()
        self.asked = None
        self.undecided += 1

    def accept(self, *, by_hand: bool = False) -> None:
        """The version on trial is the control from now on, and the best one too if it has beaten that. ``by_hand``: it
        has not been shown to be good, so the evidence against what comes next begins as at the start.
        """
        proven = self.beats_best()
        self.groups.accept()
        self.control = self.floor = self.tried
        self.baseline.accept()
        self.deadline.accept()
        self.guards.accept()
        self.since = self.late = self.undecided = 0
        self._begin_again(fresh=by_hand)
        if proven:
            self.move_best(self.tried)
        else:
            self._mark()

    def beats_best(self) -> bool:
        """Whether what is served was shown to be better than the best version. Groups are compared with that one until
        each had runs enough: afterwards nobody looks.
        """
        heard = not self.settings.by_group or (self.groups.is_heard(best=True) and not self._by_group(best=True))
        return self.better_best.wealth >= 1.0 / self.settings.alpha and heard

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
            for detector, kept in zip((self.worse_best, self.better_best), self.kept, strict=True):
                detector.lower_to(kept)
            self.groups.reset(best=True)
        self._begin_again(fresh=True)
        self.tried = self.control

    def hold_out(self, best: HeldOut, later: HeldOut) -> None:
        """Held-out runs of the best version, and of those after it. They are no evidence for a verdict: they only say
        how many new runs the best version still needs. Where rewards meant something else before, they say nothing.
        """
        self.ahead, least = 0.0, 0.05 * self.scale.span
        if min(best.n, later.n) >= HELD_OUT and not self.rescaled and least > 0.0:
            error = math.sqrt(sum(max(runs.std, least) ** 2 / runs.n for runs in (best, later)))
            self.ahead = (later.mean - best.mean) / error

    def decide_by_hand(self, control: int) -> None:
        """A person, or an engine's refusal, has chosen. That version is control and best; all evidence begins again."""
        self.floor = self.best_floor = max(self.tried, self.newest, self.floor, control)
        self.control = self.tried = control
        self._forget_trial()
        self.move_best(control, fresh=True)
        self._begin_again(fresh=True)

    def keep_from(self, groups: frozenset[str], given: frozenset[str] = frozenset()) -> None:
        """What is served was taken back for these groups alone, or was given back to one. The evidence that is left
        is about other runs, so it begins again, with no new wealth. ``given``: by a person.
        """
        self.given = self.groups.given = given
        if groups != self.kept_from:
            self.kept_from = groups
            self.since = self.late = 0
            self._forget_own()
            for detector in (self.worse, self.better, self.hung, self.worse_best, self.better_best):
                detector.forget()
            self.groups.forget(rewards=False)
            self.guards.forget()
            self.latched = ""
            self._mark(anew=True)

    def _begin_again(self, *, fresh: bool = False) -> None:
        """Of the evidence against the control."""
        for detector in (self.worse, self.better, self.hung):
            detector.reset(fresh=fresh)
        self.groups.reset(best=False, fresh=fresh)
        self.guards.reset(fresh=fresh)
        self.ratings = RatingWatch()
        self.latched = ""

    def _forget_trial(self) -> None:
        self.since = self.late = self.undecided = 0
        self._forget_own()
        self.deadline.forget()

    def _forget_own(self) -> None:
        self.own = self.own_late = 0
        self.own_sum = self.own_above = 0.0

    def move_best(self, version: int, *, fresh: bool = False) -> None:
        """Slides are measured against this version from now on."""
        self.groups.move_best(control=version == self.control)
        self.best = version
        self.best_floor = max(self.best_floor, version)
        self.worse_best.reset(fresh=fresh)
        self.better_best.reset(fresh=fresh)
        self.groups.reset(best=True, fresh=fresh)
        self._mark(anew=True)

    # evidence

    def observe(self, outcome: ArmOutcome) -> Decision:
        """The next episode in the order of assignment. Its reward changes scale and baseline after it was counted.

        One that is not ``finished`` counts as the lowest reward.
        """
        self.seen += 1
        if outcome.at < self.fresh or not self.kept_from.isdisjoint(outcome.groups) or self._straggles(outcome):
            self._see_duration(outcome, tested=outcome.version > self.floor)
            return self.verdict()
        partial = self.deadline.sparse
        if partial:
            self._see_rating(outcome)
        if partial and not outcome.finished:
            self._see_duration(outcome, tested=outcome.version > self.floor)
            return self.verdict()
        watched = outcome.finished and not self.scale.fixed and self._is_reference(outcome)
        changed = watched and self.watch.see(outcome.reward, outcome.task)
        self.groups.count(outcome.groups)
        x = self.scale.unit(outcome.reward) if outcome.finished else 0.0
        expected = self.baseline.of(outcome.task)
        tested = self._against_control(outcome, x, expected, partial)
        self._against_best(outcome, x, expected, partial)
        if changed:  # it was counted as it stood: a run that is left out for its reward would bend the bets
            self.rewards_changed(outcome.at + (outcome.seconds or 0.0))
            return self.verdict()
        gone = not tested and outcome.version <= self.floor and outcome.version != self.control
        if outcome.arm != BEST_ARM and not gone:
            late = tested or outcome.version > self.floor
            self.baseline.see(x, outcome.task, tested=late)
            self.groups.learn(outcome.groups, x, tested=late)
        if outcome.version == self.best:
            self.groups.learn_best(outcome.groups, x)
        self._see_duration(outcome, tested=tested)
        low, high = self.scale.low, self.scale.high
        if outcome.finished and self.scale.see(outcome.reward):
            for known in (self.baseline, self.groups):
                known.rescale(low, high, self.scale.low, self.scale.high)
            self._see_span()
        return self.verdict()

    def _straggles(self, outcome: ArmOutcome) -> bool:
        """Whether it began before anything was compared, and ends now. Such runs come in the order of their ends: the
        longest ones, and those on an older scale, come last.
        """
        alone = outcome.live <= 0.0 and outcome.control <= 0.0 and outcome.candidate <= 0.0
        return alone and self.on_trial and outcome.seconds is not None and self.scale.count >= MIN_SCALE_REWARDS

    def _see_span(self) -> None:
        """Where the range of rewards has shrunk, runs that were counted before said little: a loss looked small."""
        self.widest = max(self.widest, self.scale.span)
        if 0.0 < self.scale.span < SHRUNK_RANGE_SHARE * self.widest:
            self.widest = self.scale.span
            self.since = self.late = 0
            self._forget_own()

    def _is_reference(self, outcome: ArmOutcome) -> bool:
        """Whether its adapter is one that is not on trial and was there before."""
        return outcome.version in (self.control, self.best) and outcome.version <= self.floor

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
        self.widest = 0.0
        if not self.scale.fixed:
            self.scale = RewardScale()
        self.baseline = Baseline()
        self.watch.begin([])
        self.since = self.late = 0
        self._forget_own()
        self.asked = None
        for detector in (self.worse, self.better, self.worse_best, self.better_best):
            detector.forget()
        self.groups.forget(rewards=True)
        self._mark(anew=True)

    @property
    def unsettled(self) -> bool:
        """It is not known yet what a reward means."""
        return self.watch.doubt or (self.rescaled > 0 and self.scale.count < MIN_SCALE_REWARDS)

    def _see_duration(self, outcome: ArmOutcome, *, tested: bool) -> None:
        if outcome.finished and outcome.seconds is None:
            return
        if tested or outcome.version in (self.control, self.best):
            self.deadline.see(outcome.seconds, outcome.version, tested=tested)

    def _compared(self, outcome: ArmOutcome) -> tuple[bool, float] | None:
        """→ (whether it is an episode on trial, the probability of that among the two arms that are compared). None: it
        is an episode of neither.
        """
        canary = self.settings.canary
        tested = outcome.candidate if canary else outcome.live
        reference = outcome.live if canary else outcome.control
        if tested <= 0.0 or reference <= 0.0 or _is_over(outcome, self.floor):
            return None
        share = tested / (tested + reference)
        if outcome.arm == (CANDIDATE_ARM if canary else LIVE_ARM) and outcome.version > self.floor:
            return True, share
        is_control = outcome.arm == (LIVE_ARM if canary else CONTROL_ARM) and outcome.version == self.control
        return (False, share) if is_control else None

    def _see_rating(self, outcome: ArmOutcome) -> None:
        """Of a run of those that not all get a reward."""
        if (compared := self._compared(outcome)) is not None:
            on_trial, share = compared
            self.ratings.see(outcome.finished, self.deadline.rewarded, on_trial, share)
            if not outcome.finished:
                self.guards.see({}, outcome.task, on_trial, share)

    def _against_control(self, outcome: ArmOutcome, x: float, expected: float, partial: bool) -> bool:
        """→ Whether it is an episode on trial."""
        if (compared := self._compared(outcome)) is None:
            return False
        on_trial, share = compared
        if on_trial:
            self.since += 1
            self.late += not outcome.finished
            if outcome.version > self.newest:
                self.newest = outcome.version
                for detector in (self.worse, self.better, self.hung, self.worse_best, self.better_best):
                    detector.start()
                self.groups.start()
                self.guards.start()
            if outcome.version == self.tried:
                self.own += 1
                self.own_late += not outcome.finished
                self.own_above += x - expected
                self.own_sum += x - min(expected, self.baseline.of_tested(outcome.task))
        self.worse.see(x, expected, on_trial, share, partial)
        self.better.see(x, expected, on_trial, share, partial)
        if not partial:
            self.hung.see(float(outcome.finished), self.deadline.rewarded, on_trial, share)
        self.groups.see(outcome.groups, x, expected, on_trial, share, best=False, partial=partial)
        self.guards.see(outcome.measures, outcome.task, on_trial, share)
        if not self.latched and self.on_trial and (guard := self.guards.alarmed(self.settings.alpha)) is not None:
            self.latched = guard.name
        return on_trial

    def _against_best(self, outcome: ArmOutcome, x: float, expected: float, partial: bool) -> None:
        # a control that is not the best one has no runs to compare with here: its probability says nothing
        apart = self.control != self.best and outcome.tried is not None and outcome.tried > self.control
        reference = outcome.best if outcome.best > 0.0 or apart else outcome.control
        # after a rollback the control serves again, whose number is below those that were taken back
        back = outcome.tried == self.tried == self.control != self.best
        if outcome.live <= 0.0 or reference <= 0.0 or (_is_over(outcome, self.best_floor) and not back):
            return
        serves = outcome.version > self.best_floor or (back and outcome.version == self.control)
        tested = outcome.arm == LIVE_ARM and serves
        if not tested and (outcome.arm == LIVE_ARM or outcome.version != self.best):
            return
        share = outcome.live / (outcome.live + reference)
        self.worse_best.see(x, expected, tested, share, partial)
        self.better_best.see(x, expected, tested, share, partial)
        self.groups.see(outcome.groups, x, expected, tested, share, best=True, partial=partial)

    def against(self, *, best: bool) -> float:
        """All evidence against what is served, beside the best version or beside the control."""
        wealth = self.worse_best.wealth if best else self.worse.wealth + self.hung.wealth
        return wealth + (self.groups.wealth(best=best) if self.settings.by_group else 0.0)

    def verdict(self) -> Decision:
        limit = 1.0 / self.settings.alpha
        apart = self.tried != self.best
        if self.unsettled or (not self.on_trial and not apart):
            return Decision.UNDECIDED
        if self.against(best=False) + self.against(best=True) >= limit:
            # What fails altogether is worse than both: that says nothing against the control.
            if self.settings.group_alone and self.worst_group() is not None:
                return Decision.ROLLBACK_GROUP
            slides = self.shown_by_best and self.worse.growth() < HOLD_GROWTH and self._by_group(best=False) < 1.0
            return Decision.ROLLBACK_BEST if slides or not self.on_trial else Decision.ROLLBACK
        if self.settings.guard_action == "rollback" and self.alarm is not None:
            return Decision.ROLLBACK
        # where some go first, what they say of it is not enough for everybody
        least = 2 * MIN_OWN_EPISODES if self.settings.canary and self.settings.first else MIN_OWN_EPISODES
        if not self.on_trial or self.own < least or self.is_among_first or self.frozen or self.scale.is_coarse():
            return Decision.UNDECIDED
        # the evidence for "better" is of all versions on trial together: the newest must not have lost it again
        heard = self.since >= self.settings.settle or not self.settings.by_group or self.groups.is_heard(best=False)
        proven = self.better.wealth >= limit and self.calm_aside() and self.own_sum >= 0.0 and heard
        if proven or (self.since >= self.settings.settle and self.trusted()):
            return Decision.ACCEPT
        return Decision.UNDECIDED

    def own_difference(self) -> float | None:
        """Mean of the served version's own runs minus that of the control's, in the scale's units. None: an arm is
        empty.
        """
        if not self.own or not self.worse.n_reference:
            return None
        return self.own_above / self.own - self.worse.sum_reference / self.worse.n_reference

    @property
    def shown_by_best(self) -> bool:
        """Whether most of the evidence against what is served comes from the comparison with the best version."""
        return self.control != self.best and self.against(best=True) > self.against(best=False)

    def worst_group(self) -> tuple[str, BettingDetector] | None:
        """→ (name, its bets) of the group that most of the evidence against what is served comes from; None: it comes
        from all runs together.
        """
        if not self.settings.by_group:
            return None
        of_groups = self.groups.wealth(best=False) + self.groups.wealth(best=True)
        found = self.groups.worst(best=self.shown_by_best)
        return found if of_groups > self.worse.wealth + self.worse_best.wealth else None

    def trusted(self) -> bool:
        """Nothing speaks against the version on trial, and what was seen would have shown a loss."""
        return self.calm() and not self.may_slide() and not self.may_lose_half()

    def calm(self) -> bool:
        """Nothing speaks against the version on trial."""
        calm = self.worse.growth() < 1.5 and self.worse_best.growth() < 2.0 and self.hung.growth() < 1.5
        calm = calm and self.calm_aside() and self.doubted() is None and self.doubted_guard() is None
        fair = self.own_sum >= OWN_Z * 0.5 * self.own**0.5  # a reward spreads by at most one half
        return calm and fair and self.worse.z() > TRUSTED_Z

    def missed(self) -> float:
        """The largest loss beside the control, in the scale's units, that what was seen does not exclude: with 95 % a
        larger one would have been seen. 1.0: nothing is known.
        """
        return _missed(*self.worse.estimate())

    def missed_slide(self) -> float:
        """As ``missed``, beside the best version, of the last ``SLIDE_VERSIONS`` that were accepted, and what is on
        trial.
        """
        found = [self.worse.estimate()] if self.settings.canary else []
        if not self.settings.canary or self.control != self.best:  # a canary's control is compared with the best one
            found.append(self.worse_best.estimate(self.marks[0]))
        difference, error = sum(d for d, _ in found), math.hypot(*(e for _, e in found))
        return _missed(difference, error)

    def may_slide(self) -> bool:
        """Whether slow losses may have added up to more than ``MAX_SLIDE``, as far as is seen."""
        apart = self.control != self.best or self.settings.canary
        waits = apart and self.since < MAX_WAIT_SETTLES * self.settings.settle
        return waits and bool(self.settings.holdout) and self.missed_slide() > MAX_SLIDE

    def may_lose_half(self) -> bool:
        """Whether half of what the control gets may be lost, as far as is seen: where successes are rare, a few runs
        without one say nothing.
        """
        waits = self.since < MAX_WAIT_SETTLES * self.settings.settle
        return waits and self.missed() > 0.5 * self.baseline.control.value

    def doubted(self) -> tuple[str, BettingDetector] | None:
        """→ (group, its bets) that an acceptance waits for, but only for a while: it seems to lose. None: there is
        none.
        """
        waits = self.settings.by_group and self.since < HELD_SETTLES * self.settings.settle
        return self.groups.doubted() if waits else None

    def doubted_guard(self) -> Guard | None:
        """As ``doubted``, of the guards."""
        speaks = self.settings.guard_action != "say" and self.frozen_by_hand is not False
        return self.guards.doubted() if speaks and self.since < HELD_SETTLES * self.settings.settle else None

    def calm_aside(self) -> bool:
        """Neither a group nor a guard speaks against it, whatever the reward says."""
        return max(self._by_group(best=False), self._by_group(best=True), self._by_guard()) < 1.0

    # kept over a restart

    def dump(self) -> dict[str, JsonValue]:
        return {
            "versions": [self.control, self.best, self.tried, self.floor, self.best_floor, self.newest],
            "counts": [self.own, self.since, self.seen, self.undecided],
            "own_sum": self.own_sum,
            "own_above": self.own_above,
            "kept_from": [*sorted(self.kept_from)],
            "late": [self.late, self.own_late],
            "deadline": self.deadline.dump(),
            "watch": self.watch.dump(),
            "rescaled": self.rescaled,
            "declared": self.declared,
            "fresh": [self.fresh, self.widest],
            "latched": self.latched,
            "scale": self.scale.dump(),
            "baseline": self.baseline.dump(),
            "evidence": [d.dump() for d in (self.worse, self.better, self.worse_best, self.better_best)],
            "hung": [*self.hung.dump()],
            "kept": [*self.kept],
            "marks": [*self.marks],
            "groups": self.groups.dump(),
            "guards": self.guards.dump(),
            "ratings": self.ratings.dump(),
        }

    def load(self, kept: dict[str, JsonValue]) -> None:
        """Raises ``TypeError``, ``KeyError``, ``ValueError`` for what another version of this program wrote."""
        numbers = _integers(kept["versions"], 6)
        counts = _integers(kept["counts"], 4)
        evidence, scale, baseline, marked = kept["evidence"], kept["scale"], kept["baseline"], kept["kept"]
        if not isinstance(evidence, list) or not isinstance(scale, dict) or not isinstance(baseline, dict):
            raise TypeError("evidence of another shape")
        if not isinstance(marked, list):
            raise TypeError("evidence of another shape")
        detectors = (self.worse, self.better, self.worse_best, self.better_best)
        for detector, state in zip(detectors, evidence, strict=True):
            detector.load(state)
        self.scale.load(scale)
        self.baseline.load(baseline)
        self.control, self.best, self.tried, self.floor, self.best_floor, self.newest = numbers
        self.own, self.since, self.seen, self.undecided = counts
        self.late, self.own_late = _integers(kept.get("late", [0, 0]), 2)
        if "hung" in kept:
            self.hung.load(kept["hung"])
        self.deadline.load(kept.get("deadline"))
        self.watch.load(kept.get("watch"))
        self.groups.load(kept.get("groups"))
        self.guards.load(kept.get("guards"))
        self.ratings.load(kept.get("ratings"))
        kept_from = kept.get("kept_from", [])
        self.kept_from = frozenset(map(str, kept_from)) if isinstance(kept_from, list) else frozenset()
        (self.rescaled,) = _integers([kept.get("rescaled", 0)], 1)
        declared = kept.get("declared", 0.0)
        self.declared = float(declared) if isinstance(declared, int | float) else 0.0
        sums = [kept.get(name, 0.0) for name in ("own_sum", "own_above")]
        self.own_sum, self.own_above = (float(x) if isinstance(x, int | float) else 0.0 for x in sums)
        fresh, latched = kept.get("fresh", [self.declared, 0.0]), kept.get("latched", "")
        if isinstance(fresh, list):
            self.fresh, self.widest = (float(x) if isinstance(x, int | float) else 0.0 for x in fresh)
        self.latched = latched if isinstance(latched, str) else ""
        self._load_mark(marked)
        if isinstance(marks := kept.get("marks"), list) and marks:
            self.marks = marks

    def _load_mark(self, marked: list[JsonValue]) -> None:
        """An older program kept [wealth put in, *wealths] of the evidence against the best version alone."""
        if marked and not isinstance(marked[0], list):
            marked = [[0.0, marked[0], *[0.0] * 6, *marked[1:]], self.better_best.dump()]
        if len(marked) != len(self.kept):
            raise TypeError("evidence of another shape")
        self.kept = marked
        self.marks = [marked[0]]


def _is_over(outcome: ArmOutcome, floor: int) -> bool:
    """Whether the version that it was compared with at its assignment is no longer evidence.

    After a rollback, episodes of both arms are still running. The tested ones are no evidence any more. The control's
    must not be either: successes of one arm alone look as if that arm were the better one.
    """
    return outcome.tried is not None and outcome.tried <= floor


def _missed(difference: float, error: float) -> float:
    return min(SEEN_ERRORS * error - difference, 1.0)


def _suspicion(detector: BettingDetector) -> float:
    """0: nothing speaks against it; 1: the control arm gets all that it may."""
    z = detector.z()
    return max(1.0 if z < -1.6 else 0.4 if z < -1.0 else 0.0, _grown(detector.growth()))


def _grown(growth: float) -> float:
    return 1.0 if growth > 2.0 else 0.4 if growth > 1.5 else 0.0


def _integers(kept: JsonValue, count: int) -> list[int]:
    if not isinstance(kept, list) or len(kept) != count:
        raise TypeError("evidence of another shape")
    return [int(x) for x in kept if isinstance(x, int | float)]
