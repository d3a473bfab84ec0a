"""Runs wait here, in the order in which they were assigned, until their rewards are known or their deadline has passed.

The order of the ends depends on the arm: a version that thinks longer ends later, and successes of the control that
come first look like evidence. In the order of assignment the arm of the next run is a coin that nothing counted before
it has to do with. The deadline is the same for both arms, and set by runs that were counted before: by those that ended
in time, and by the control's that were given up and ended later. A deadline that is too short would see no others.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from slipstream_proxy.log.records import mark_of

if TYPE_CHECKING:
    from pydantic import JsonValue

    from slipstream_proxy.control.gate.rules import ArmOutcome

MAX_WAITING_RUNS: Final = 10_000
"""Runs that wait. While there are so many, newer ones are no evidence: chance alone says which these are."""
FIRST_DEADLINE_FACTOR, LATER_DEADLINE_FACTOR = 5.0, 2.5
"""The deadline in usual durations: for a version of which fewer than ``MIN_OWN_RUNS`` runs were counted, and for
others."""
MIN_OWN_RUNS: Final = 16
USUAL_QUANTILE: Final = 0.95
"""The usual duration is this point of an arm's durations, and the slower arm's counts."""
RARE_RUNS, RARE_DEADLINE_FACTOR = 110, 30.0
"""Where runs are rare, so many begin before the deadline: fewer give no verdict anyway. It is no longer for that than
so many usual durations.
"""
REMEMBERED_DURATIONS: Final = 200
GAP_RUNS, MAX_PAUSES = 200, 6
"""Newest counted runs whose times say how rare runs are, and how many pauses among them say nothing."""
FIRST_RUNS: Final = 3
SILENCE_FACTOR: Final = 1.5
"""A version whose first ``FIRST_RUNS`` runs go on for so many usual durations, while none of its runs has ended, gets
a small share until one ends, or until the first of them count.
"""
MAX_SILENT_RUNS: Final = 24
"""Runs of such a version that begin before. Where runs are rare, these are the evidence that takes it back."""
MIN_CONTROL_DURATIONS: Final = 8
"""Durations of the control before which the deadline is ``UNKNOWN_DEADLINE_S``."""
MIN_DEADLINE_S, UNKNOWN_DEADLINE_S = 30.0, 3600.0
"""Seconds."""
MAX_GIVEN_UP_RUNS, KEPT_GIVEN_UP_RUNS = 10_000, 200
"""Runs of the control that were given up, whose rewards may still come; those of them that a restart remembers."""
LATE_SHARE, LATE_RATING_SHARE, NEARLY_ALL_RATED_SHARE = 0.05, 0.2, 0.8
"""Of the control's rewards that come: so many may be late before they make the deadline longer. Where fewer runs than
the third get one at all, so many as the second: there a run without one says nothing, and a long deadline costs time.
"""
MOST_LATE_FACTOR: Final = 2.0
"""A late run counts as no longer than so many deadlines: a single one makes it ten times as long at most."""
SPARSE_REWARD_SHARE: Final = 0.95
"""Share of the control's runs with a reward below which a run without one says nothing: people rate some runs."""
USUAL_LOST_SHARES: Final = [0.002, 0.02]
"""Shares of runs that stay without one where all get one: bets on these show that it is not a twentieth."""
FULL_EVIDENCE, KEPT_EVIDENCE, LEAST_EVIDENCE, MOST_EVIDENCE = 200.0, 2.0, 0.05, 1000.0
"""Evidence that nearly all runs get a reward: from which on that is shown; below which a run without one takes that
back; and its bounds, so that a change is seen.
"""
FEW_RATED_SHARE, LOST_SHARE = SPARSE_REWARD_SHARE, 0.02
"""Share of the control's runs with a reward below which a run that lacks one must not speak against a version; and
share of those that lack one anyway, where all get one.
"""
BORNE_OUT = (math.log(LOST_SHARE / (1.0 - FEW_RATED_SHARE)), math.log((1.0 - LOST_SHARE) / FEW_RATED_SHARE))
"""Logarithm of a bet's factor, for a run without a reward and for one with it."""


class Deadline:
    """Seconds from a run's assignment until it counts as failed if it has no reward. ``declared``: never learned."""

    def __init__(self, declared: float | None = None, *, missing_fails: bool = False) -> None:
        self.declared, self.missing_fails = declared, missing_fails
        self.control: deque[float] = deque(maxlen=REMEMBERED_DURATIONS)
        self.tested: deque[float] = deque(maxlen=REMEMBERED_DURATIONS)
        self.version = self.own = 0
        """The newest version on trial of which a run was counted, and how many of its runs were."""
        self.rewarded, self.n = 1.0, 2.0
        """Share of the control's runs that had a reward in time."""
        self.full, self.shown = True, False
        """No run lacks one, or nearly all of the control's are shown to get one: else chance would often take nine of
        ten for nearly all.
        """
        self.on_full = [0.5, 0.5]
        """Wealth of the bets on ``USUAL_LOST_SHARES``."""
        self.borne_out = 0.0
        """Logarithm of all bets so far that the control's runs get a reward. Null hypothesis: given the past, one gets
        it with at most ``FEW_RATED_SHARE``; so each factor's mean is at most 1.
        """
        self.began: deque[float] = deque(maxlen=GAP_RUNS)
        """When the newest counted runs began."""
        self.given_up: dict[str, float] = {}
        """Runs of the control that had no reward in time, by a hash of their name (they may be forgotten, and this is
        kept over a restart) → when they began.
        """
        self.came: deque[float] = deque(maxlen=REMEMBERED_DURATIONS)
        """Of the control's newest rewards: 1.0 for one that came late."""
        self._usual: float | None = None
        self._gap: float | None = None

    def seconds(self, tried: int | None) -> float:
        """For a run that was assigned while this version was on trial."""
        if self.declared is not None:
            return self.declared
        if len(self.control) < MIN_CONTROL_DURATIONS:
            return UNKNOWN_DEADLINE_S
        known = tried is not None and tried == self.version and self.own >= MIN_OWN_RUNS
        times, usual = (LATER_DEADLINE_FACTOR if known else FIRST_DEADLINE_FACTOR), self.usual()
        return max(
            times * usual,
            times / FIRST_DEADLINE_FACTOR * min(RARE_RUNS * self.gap(), RARE_DEADLINE_FACTOR * usual),
            MIN_DEADLINE_S,
        )

    def gap(self) -> float:
        """Mean seconds between the beginnings of two runs, pauses left out; 0.0 while few are known."""
        if self._gap is None:
            known = list(self.began)
            gaps = sorted(max(b - a, 0.0) for a, b in pairwise(known))[:-MAX_PAUSES]
            self._gap = sum(gaps) / len(gaps) if len(gaps) >= MIN_CONTROL_DURATIONS else 0.0
        return self._gap

    def count(self, at: float) -> None:
        """A run that began then is counted."""
        self.began.append(at)
        self._gap = None

    def usual(self) -> float:
        """Seconds that few runs take longer than; ``UNKNOWN_DEADLINE_S`` while few are known."""
        if len(self.control) < MIN_CONTROL_DURATIONS:
            return UNKNOWN_DEADLINE_S
        if self._usual is None:
            self._usual = max(_usual(self.control), _usual(self.tested))
        return self._usual

    @property
    def sparse(self) -> bool:
        """So many of the control's runs have no reward that lacking one says nothing."""
        return not self.full and not self.missing_fails

    def lack(self) -> None:
        """A run of any arm has no reward."""
        self.full = self.full and self.shown

    def see(self, seconds: float | None, version: int, *, tested: bool) -> None:
        """A run was counted. ``seconds``: until its reward; None: it had none in time."""
        if tested:
            if version != self.version:
                self.version, self.own = version, 0
            self.own += 1
        else:
            self.n = min(self.n + 1.0, float(REMEMBERED_DURATIONS))
            self.rewarded += ((seconds is not None) - self.rewarded) / self.n
            self._judge(seconds is not None)
        if seconds is not None:
            (self.tested if tested else self.control).append(seconds)
            self._usual = None
            if not tested:
                self.came.append(0.0)

    def give_up(self, eid: str, began: float) -> None:
        """A run of the control had no reward in time."""
        self.given_up[mark_of(eid)] = began
        if len(self.given_up) > MAX_GIVEN_UP_RUNS:
            del self.given_up[next(iter(self.given_up))]

    def come(self, eid: str, at: float) -> None:
        """The reward of a run that nobody waits for. Of the control's runs that were given up it says how long runs
        take: only of these, so that a version that thinks longer does not move its own deadline.
        """
        began = self.given_up.pop(mark_of(eid), None) if self.given_up else None
        if began is None:
            return
        self.came.append(1.0)
        late = sum(self.came) / len(self.came)
        nearly_all = self.rewarded >= NEARLY_ALL_RATED_SHARE * (1.0 - late)
        if late > (LATE_SHARE if nearly_all else LATE_RATING_SHARE):
            self.control.append(min(max(at - began, 0.0), MOST_LATE_FACTOR * self.seconds(None)))
            self._usual = None

    def let_go(self, eid: str) -> None:
        """The run failed: no reward of it says anything."""
        if self.given_up:
            self.given_up.pop(mark_of(eid), None)

    def _judge(self, rewarded: bool) -> None:
        """Null hypothesis: given the past, a run of the control gets no reward with a twentieth or more. Each factor
        is larger for a run with one and has mean 1 at a twentieth, so the wealth is a supermartingale as long as it is
        above its floor. From the floor it starts again, so that a change is seen: at exactly a twentieth, 7 of 60 times
        10,000 runs were called nearly all rated for a while.
        """
        self.borne_out += BORNE_OUT[rewarded]
        for i, lost in enumerate(USUAL_LOST_SHARES):
            factor = (1.0 - lost) / SPARSE_REWARD_SHARE if rewarded else lost / (1.0 - SPARSE_REWARD_SHARE)
            self.on_full[i] = min(max(self.on_full[i] * factor, 0.5 * LEAST_EVIDENCE), 0.5 * MOST_EVIDENCE)
        evidence = sum(self.on_full)
        if self.rewarded < SPARSE_REWARD_SHARE or (not rewarded and evidence < KEPT_EVIDENCE):
            self.shown = False
        elif evidence >= FULL_EVIDENCE:
            self.full = self.shown = True
        if not rewarded:
            self.lack()

    def accept(self) -> None:
        """The tested version is the control from now on."""
        if len(self.tested) >= MIN_CONTROL_DURATIONS:
            self.control = self.tested
        self.forget()

    def forget(self) -> None:
        """What was on trial is gone."""
        self.tested = deque(maxlen=REMEMBERED_DURATIONS)
        self._usual = None

    def dump(self) -> dict[str, JsonValue]:
        counts: list[JsonValue] = [self.version, self.own, self.rewarded, self.n]
        full: list[JsonValue] = [self.full, self.shown, *self.on_full]
        durations: dict[str, JsonValue] = {"control": [*self.control], "tested": [*self.tested]}
        given_up: dict[str, JsonValue] = dict(list(self.given_up.items())[-KEPT_GIVEN_UP_RUNS:])
        late: dict[str, JsonValue] = {"given_up": given_up, "came": [*self.came]}
        return {**durations, "counts": counts, "began": [*self.began], "full": full, **late}

    def load(self, kept: JsonValue) -> None:
        """None, of a program that had no deadline: it is learned."""
        if not isinstance(kept, dict):
            return
        self.control, self.tested = _durations(kept["control"]), _durations(kept["tested"])
        version, own, self.rewarded, self.n = _numbers(kept["counts"])
        self.version, self.own = int(version), int(own)
        self.began = deque(_numbers(kept.get("began", [])), maxlen=GAP_RUNS)
        full = _numbers(kept.get("full", []))
        if len(full) == 2 + len(self.on_full):
            self.full, self.shown, self.on_full = bool(full[0]), bool(full[1]), full[2:]
        self.came = _durations(kept.get("came", []))
        given_up = kept.get("given_up", {})
        if isinstance(given_up, dict):
            self.given_up = {eid: float(at) for eid, at in given_up.items() if isinstance(at, int | float)}
        self._usual = self._gap = None


class WaitingRun:
    __slots__ = ("at", "compared", "ended", "moved", "outcome", "seq")

    def __init__(self, seq: int, at: float, outcome: ArmOutcome, *, compared: bool) -> None:
        self.seq, self.at, self.outcome, self.compared = seq, at, outcome, compared
        self.ended: float | None = None if compared else at
        self.moved = False
        """An earlier adapter than the assigned one answered it: an engine had lost that, so it is no evidence. One that
        moved on to a later version is what its coin made it: these are the longest runs, and only a version that is
        replaced has them.
        """


class AssignmentLine:
    """Feed it assignments and ends in the order in which they were written down, and ``take`` what is to be counted.

    A run that nobody compares (no arm was chosen by chance) waits for nothing: it stands where its reward came.
    """

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.waiting: dict[str, WaitingRun] = {}
        self.running: dict[str, float] = {}
        """Runs that nobody compares → when they began."""
        self.cursor = 0
        """The number of what was written down and is counted, with all before it: from there it can be read again."""
        self.starts: list[float] = []
        """When the first ``FIRST_RUNS`` runs of ``newest``, the newest version on trial, began."""
        self.newest, self.begun, self.ended = 0, 0, False
        """How many runs of ``newest`` began, and whether one has ended."""
        self.at = 0.0
        """When what was counted had ended, with all before it."""

    def assign(self, seq: int, eid: str, at: float, outcome: ArmOutcome, *, compared: bool) -> None:
        """``outcome`` has no reward yet."""
        runs = self.waiting if compared else self.running
        if eid in runs or len(runs) >= MAX_WAITING_RUNS:
            return
        if compared:
            self.waiting[eid] = WaitingRun(seq, at, outcome, compared=True)
            if outcome.version == outcome.tried:
                self._began(outcome.version, at)
        else:
            self.running[eid] = at

    def end(self, seq: int, eid: str, at: float, outcome: ArmOutcome, *, compared: bool) -> None:
        """Its reward is known. A run that is not waited for any more counts no second time."""
        if (run := self.waiting.get(eid)) is not None:
            if run.ended is None:
                self.ended = self.ended or run.outcome.version == self.newest
                run.ended, run.moved = at, outcome.version < run.outcome.version
                run.outcome.reward, run.outcome.task = outcome.reward, outcome.task or run.outcome.task
                run.outcome.groups, run.outcome.measures = outcome.groups, outcome.measures
        elif not compared:
            began = self.running.pop(eid, None)
            if began is None:
                self.deadline.come(eid, at)
            outcome.seconds = max(at - began, 0.0) if began is not None else None
            outcome.at = began if began is not None else at
            self.waiting[eid or f"#{seq}"] = WaitingRun(seq, at, outcome, compared=False)
        else:
            self.deadline.come(eid, at)

    def drop(self, eid: str) -> None:
        """The run failed: no model said anything in it. It is waited for no more, and is no evidence."""
        self.running.pop(eid, None)
        self.waiting.pop(eid, None)
        self.deadline.let_go(eid)

    def take(self, now: float, floor: int, back: int | None = None) -> ArmOutcome | None:
        """The next run to be counted; None: it is still running. ``floor``: versions up to there are decided, but for
        ``back``, which serves again beside a better one.
        """
        self._expire(now)
        while self.waiting:
            eid, run = next(iter(self.waiting.items()))
            outcome, ended = run.outcome, run.ended
            over = outcome.tried is not None and outcome.tried <= floor and outcome.tried != back
            limit = self.deadline.seconds(outcome.tried)
            if ended is None and not over and now - run.at <= limit:
                return None
            del self.waiting[eid]
            self.cursor, self.at = run.seq, max(self.at, run.at + limit if ended is None else ended)
            if run.moved or (ended is None and over):
                continue
            outcome.at = run.at if run.compared else outcome.at
            self.deadline.count(run.at)
            if run.compared and not over:
                outcome.finished = ended is not None and ended - run.at <= limit
                outcome.seconds = max(ended - run.at, 0.0) if ended is not None and outcome.finished else None
            return outcome
        return None

    def _expire(self, now: float) -> None:
        limit = self.deadline.seconds(None)
        while self.running:
            eid, began = next(iter(self.running.items()))
            if now - began <= limit:
                return
            del self.running[eid]
            self.deadline.see(None, 0, tested=False)
            self.deadline.give_up(eid, began)

    def _began(self, version: int, at: float) -> None:
        if version > self.newest:
            self.newest, self.begun, self.ended, self.starts = version, 0, False, []
        self.begun += version == self.newest
        if version == self.newest and len(self.starts) < FIRST_RUNS:
            self.starts.append(at)

    def is_silent(self, version: int, now: float) -> bool:
        """Whether a version's first runs take much longer than the control's, and none of its runs has ended."""
        began = self.starts[-1] if len(self.starts) == FIRST_RUNS else now
        waits = now - began > max(SILENCE_FACTOR * self.deadline.usual(), MIN_DEADLINE_S)
        return version == self.newest and self.begun >= MAX_SILENT_RUNS and not self.ended and waits

    def is_due(self, now: float) -> bool:
        """Whether a run is past its deadline, as far as is known."""
        run = next(iter(self.waiting.values()), None)
        if run is not None and run.ended is None and now - run.at > self.deadline.seconds(run.outcome.tried):
            return True
        began = next(iter(self.running.values()), None)
        return began is not None and now - began > self.deadline.seconds(None)


def _usual(durations: deque[float]) -> float:
    if not durations:
        return 0.0
    return sorted(durations)[math.ceil(USUAL_QUANTILE * len(durations)) - 1]


def _numbers(kept: JsonValue) -> list[float]:
    if not isinstance(kept, list):
        raise TypeError(f"not numbers: {kept!r}")
    return [float(x) for x in kept if isinstance(x, int | float)]


def _durations(kept: JsonValue) -> deque[float]:
    return deque(_numbers(kept), maxlen=REMEMBERED_DURATIONS)
