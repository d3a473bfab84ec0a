"""Runs of the gate in seconds: agents take time, and the two arms may take unlike times. The shipped line, deadline and statistics."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream_proxy.assignment import assign
from slipstream_proxy.control.gate.comparison import serves_again
from slipstream_proxy.control.gate.line import AssignmentLine
from slipstream_proxy.control.gate.rules import ArmOutcome, Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import arms_of
from slipstream_proxy.control.gate.trial import GateTrial

Duration = Callable[[random.Random], float]
"""Seconds of a run of the control, as a multiple of the usual ones."""
DURATIONS: dict[str, Duration] = {
    "constant": lambda _: 1.0,
    "lognormal": lambda c: math.exp(c.gauss(0.0, 0.5)),
    "exponential": lambda c: c.expovariate(1.0),
}
REWARDS: dict[str, Callable[[random.Random, float], float]] = {
    "binary": lambda c, q: float(c.random() < q),
    "three values": lambda c, q: 1.0 if c.random() < q else c.choice((0.0, 0.5)),
    "graded": lambda c, q: c.uniform(0.6, 1.0) if c.random() < q else c.uniform(0.0, 0.4),
    "negative": lambda c, q: -c.uniform(0.0, 0.2) if c.random() < q else -c.uniform(0.5, 1.0),
}
WARM = 300
"""Rewarded runs of the base model before the first version comes."""


@dataclass(slots=True, frozen=True)
class TimedWorld:
    rate: float
    """Runs that begin in a second."""
    base: float = 0.6
    """Chance of success of the base model."""
    quality: float = 0.6
    """Of every later version."""
    slower: float = 1.0
    """How many times as long a run of a later version takes; ``inf``: it never ends."""
    usual: float = 30.0
    """Seconds of a run of the base model."""
    durations: str = "constant"
    every: float = math.inf
    """Seconds between two versions."""
    lost: float = 0.0
    """Share of runs, of both arms, that never get a reward."""
    quick_failures: bool = False
    """Failures of later versions end at once; their successes take their time."""
    reward: str = "binary"
    factor: float = 1.0
    shift: float = 0.0
    """What rewards are multiplied with, and what is added, ``change`` seconds after the warm runs."""
    change: float = math.inf
    by_start: bool = False
    """Runs that began before the change have the old scale whenever they end. Else each that ends before has it."""
    declared: bool = False
    """People say so at that moment."""
    first: float = 0.0
    """Seconds after the warm runs at which the first version comes."""
    warm: int = WARM
    counted: int = 2000
    """Runs that the gate counts, at most."""


@dataclass(slots=True)
class TimedRun:
    rolled_back: float | None = None
    """Seconds from the first run of a version on trial until the first rollback."""
    live: int = 0
    """Runs that got a version on trial until then."""
    deadline: float = 0.0
    """Seconds, as it was when the version came."""
    accepted: int = 0
    waiting: int = 0
    """Most runs that waited in the line."""
    late: int = 0
    rescaled: int = 0
    """How often another scale was found."""
    counts: list[int] = field(default_factory=list)


class TimedSimulation:
    def __init__(self, world: TimedWorld, seed: int) -> None:
        self.world = world
        self.coin = random.Random(seed)
        self.key = f"k{seed}"
        self.trial = GateTrial(TrialSettings(shifts=False))
        self.line = AssignmentLine(self.trial.deadline)
        self.ends: list[tuple[float, int, str, ArmOutcome, bool]] = []
        self.seq = self.made = 0
        self.changed = math.inf
        """When the scale of rewards changes."""
        self.run = TimedRun()

    def play(self) -> TimedRun:
        world, run, trial = self.world, self.run, self.trial
        now = self._warm()
        began, next_version = now, now + world.first
        self.changed = now + world.change
        counted = 0
        while counted < world.counted:
            now += self.coin.expovariate(world.rate)
            counted += self._until(now)
            if world.declared and now >= self.changed:
                trial.declare(self.changed)
            if run.rolled_back is not None:
                run.rolled_back -= began
                return run
            if now >= next_version and not trial.waits("careful"):
                self.made += 1
                trial.serve(self.made)
                next_version = now + world.every
                run.deadline = run.deadline or trial.deadline.seconds(self.made)
            self._assign(now)
            if self.made and trial.control == trial.best == trial.tried == self.made:
                break  # it is proven, and nothing more is compared
        return run

    def _warm(self) -> float:
        """The base model alone, one run after the other as they end."""
        now = 0.0
        for _ in range(self.world.warm):
            now += self.coin.expovariate(self.world.rate)
            self._assign(now)
        now += 20.0 * self.world.usual
        self._until(now)
        return now

    def _assign(self, now: float) -> None:
        trial, world, coin = self.trial, self.world, self.coin
        arms = [(f"m@{v}", arm, share) for v, arm, share in arms_of(trial)]
        self.seq += 1
        eid = f"e{self.seq}"
        got = assign(f"m@{trial.live}", arms, self.key, None, eid)
        version, compared = int(got.adapter[2:]), bool(got.chances)
        tried = trial.tried if compared else None
        self.line.assign(
            self.seq, eid, now, outcome_of(version, got.arm, got.chances, "", 0.0, tried), compared=compared
        )
        self.run.live += version > 0 and version == trial.tried != trial.control
        reward = REWARDS[world.reward](coin, world.quality if version else world.base)
        seconds = world.usual * DURATIONS[world.durations](coin)
        if version:
            seconds *= 0.01 if world.quick_failures and reward < 0.5 else world.slower
        if math.isinf(seconds) or coin.random() < world.lost:
            return
        if (now if world.by_start else now + seconds) >= self.changed:
            reward = world.factor * reward + world.shift
        end = outcome_of(version, got.arm, got.chances, "", reward, tried)
        self.seq += 1
        heapq.heappush(self.ends, (now + seconds, self.seq, eid, end, compared))

    def _until(self, now: float) -> int:
        """→ Runs counted. Stops at the first rollback."""
        counted = 0
        while self.ends and self.ends[0][0] <= now:
            at, seq, eid, outcome, compared = heapq.heappop(self.ends)
            counted += self._count(at)
            if self.run.rolled_back is not None:
                return counted
            self.line.end(seq, eid, at, outcome, compared=compared)
            counted += self._count(at)
        return counted + (self._count(now) if self.run.rolled_back is None else 0)

    def _count(self, now: float) -> int:
        trial, counted = self.trial, 0
        self.run.rescaled = trial.rescaled
        trial.silent = self.line.is_silent(trial.tried, now)
        while (outcome := self.line.take(now, min(trial.floor, trial.best_floor), serves_again(trial))) is not None:
            counted += bool(outcome.tried)
            decision = trial.observe(outcome)
            if decision is Decision.ACCEPT:
                self.run.accepted += 1
                trial.accept()
            elif decision is not Decision.UNDECIDED:
                self.run.rolled_back, self.run.late = now, trial.runs.late
                return counted
        self.run.waiting = max(self.run.waiting, len(self.line.waiting))
        return counted


def play(world: TimedWorld, seed: int) -> TimedRun:
    return TimedSimulation(world, seed).play()
