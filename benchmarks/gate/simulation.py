"""One run of the gate against a made-up world: the shipped statistics on the shipped assignment rule, with no store and no clock between them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from slipstream_proxy.assignment import assign, tried
from slipstream_proxy.control.gate.outcome import ArmOutcome, outcome_of
from slipstream_proxy.control.gate.rules import Decision, TrialSettings
from slipstream_proxy.control.gate.trial import GateTrial

Reward = Callable[[random.Random, int, float], float]
"""(coin, task, quality of the adapter) → reward."""
BEFORE = 64
"""Rewarded episodes of the base model before the first version comes."""
GROUP = 8


@dataclass(slots=True, frozen=True)
class World:
    base: float
    """Quality of the base model: its chance of success, for rewards that have one."""
    qualities: tuple[float, ...]
    """Of version 1, 2, …; the last one stands for all later ones."""
    reward: Reward
    tasks: str = "repeat"
    """``repeat``: groups of eight runs over 50 tasks of different difficulty; ``never``: each task comes once."""
    every: int = 64
    """Episodes between two versions."""
    episodes: int = 2000
    late: bool = False
    """Rewards come 1 to 29 episodes later, those of failures 50 to 199 more."""
    delay: int = 0
    ruler: bool = False
    """Scores are relative in a group of eight."""
    stop: bool = True
    """End at the first rollback."""
    pace: str | int = "careful"
    holdout: float = 0.1


@dataclass(slots=True)
class Run:
    """What happened, in episodes."""

    bad_live: int | None = None
    """Live episodes on trial until the first rollback."""
    accepted: list[int] = field(default_factory=list)
    rollbacks: int = 0
    worst: float = 0.0
    """Most that the served version's quality was below the base model's."""
    mean: float = 0.0
    """Mean quality that episodes got."""
    held: float = 0.0
    """Share of episodes that another arm than the live one got."""
    waited: int = 0


class Simulation:
    def __init__(self, world: World, seed: int, settings: TrialSettings | None = None) -> None:
        self.world = world
        self.coin = random.Random(seed)
        self.key = f"k{seed}"
        self.trial = GateTrial(settings or TrialSettings(holdout=world.holdout, shifts=False))
        self.quality = {0: world.base}
        self.made = 0
        """The newest version that the trainer has published."""
        self.number, self.tasks = count(), count()
        self.due: dict[int, list[ArmOutcome]] = defaultdict(list)
        self.group: list[tuple[int, str, str, int]] = []
        self.run = Run()

    def play(self) -> Run:
        world, run = self.world, self.run
        for _ in range(BEFORE):
            task = self.task()
            self.trial.observe(outcome_of(0, "live", "", f"t{task}", world.reward(self.coin, task, world.base)))
        live, total, held = 0, 0.0, 0
        for i in range(world.episodes):
            if i % world.every == 0:
                self.publish()
            self.maybe_serve()
            version, arm, chances, task = self.assigned()
            on_trial = arm == "live" and version == self.trial.tried != self.trial.best
            live += on_trial
            held += arm != "live"
            total += self.quality[version]
            run.worst = max(run.worst, world.base - self.quality[self.trial.live])
            self.finish(i, version, arm, chances, task)
            for outcome in self.due.pop(i, ()):
                decision = self.trial.observe(outcome)
                if decision is not Decision.UNDECIDED and self.decide(decision) and run.bad_live is None:
                    run.bad_live = live
            if run.rollbacks and world.stop:
                break
        run.mean, run.held = total / (i + 1), held / (i + 1)
        return run

    def publish(self) -> None:
        self.made += 1
        self.quality[self.made] = self.world.qualities[min(self.made, len(self.world.qualities)) - 1]

    def maybe_serve(self) -> None:
        trial = self.trial
        if self.made <= max(trial.tried, trial.floor):
            return
        if trial.waits(self.world.pace):
            self.run.waited += 1
            return
        trial.serve(self.made)

    def task(self) -> int:
        n = next(self.tasks)
        return n if self.world.tasks == "never" else (n // GROUP) % 50

    def assigned(self) -> tuple[int, str, str, int]:
        task = self.task()
        trial = self.trial
        names = {f"m@{v}": v for v in (trial.control, trial.best, trial.tried)}
        arms = [(f"m@{v}", arm, share) for v, arm, share in trial.arms()]
        got = assign(f"m@{trial.live}", arms, self.key, f"t{task}", f"e{self.run.waited}-{next(self.number)}")
        return names[got.adapter], got.arm, got.chances, task

    def finish(self, i: int, version: int, arm: str, chances: str, task: int) -> None:
        """The episode ends; when its reward is known is the world's."""
        world, coin = self.world, self.coin
        if not world.ruler:
            reward = world.reward(coin, task, self.quality[version])
            wait = world.delay
            if world.late:
                wait = coin.randrange(1, 30) + (0 if reward > 0.5 else coin.randrange(50, 200))
            self.due[i + wait].append(outcome_of(version, arm, chances, f"t{task}", reward, tried_of(chances)))
            return
        self.group.append((version, arm, chances, task))
        if len(self.group) < GROUP:
            return
        good = [world.reward(coin, t, self.quality[v]) > 0.5 for v, _, _, t in self.group]
        same = all(good) or not any(good)
        for (v, a, c, t), ok in zip(self.group, good, strict=True):
            score = (0.5 if same else 0.9 if ok else 0.2) + coin.gauss(0.0, 0.1)
            self.due[i].append(outcome_of(v, a, c, f"t{t}", min(max(score, 0.0), 1.0), tried_of(c)))
        self.group = []

    def decide(self, decision: Decision) -> bool:
        """→ Whether something was taken back."""
        if decision is Decision.ACCEPT:
            self.run.accepted.append(self.trial.tried)
            self.trial.accept()
            return False
        self.run.rollbacks += 1
        self.trial.roll_back(decision is Decision.ROLLBACK_BEST, self.made)
        return True


def tried_of(chances: str) -> int | None:
    """The version that was on trial at an assignment."""
    name = tried(chances)
    return int(name.removeprefix("m@")) if name is not None else None
