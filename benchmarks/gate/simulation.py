"""One run of the gate against a made-up world: the shipped statistics on the shipped assignment rule, with no store and no clock between them."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from slipstream_proxy.assignment import assign, tried
from slipstream_proxy.control.gate.guards import Direction
from slipstream_proxy.control.gate.rules import ArmOutcome, Decision, HeldOut, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import arms_of
from slipstream_proxy.control.gate.suspicion import is_frozen
from slipstream_proxy.control.gate.trial import GateTrial
from slipstream_proxy.control.gate.verdict import worst_group

Reward = Callable[[random.Random, int, float], float]
"""(coin, task, quality of the adapter) → reward."""
BEFORE = 64
"""Rewarded episodes of the base model before the first version comes."""
GROUP = 8
TAG = "tag.customer={}"


@dataclass(slots=True, frozen=True)
class World:
    base: float
    """Quality of the base model: its chance of success, for rewards that have one."""
    qualities: tuple[float, ...]
    """Of version 1, 2, …; the last one stands for all later ones."""
    reward: Reward
    before: Reward | None = None
    """Of what comes before version 1, where rewards were given in another way then; None: the same."""
    warm: int = BEFORE
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
    tags: int = 0
    """Values of a tag that runs have, each as often as the others."""
    known: bool = True
    """The runs before version 1 have them too."""
    collapsed: float | None = None
    """Quality of every version for the first of these; all others get so much better that the mean is the version's."""
    alone: bool = False
    """What is worse for one of them is taken back for it alone."""
    side: tuple[str, Callable[[random.Random, bool], float]] | None = None
    """A guard whose bad direction is up, and (coin, a version is tested) → its measure."""
    pace: str | int = "careful"
    holdout: float = 0.1
    held_out: int = 0
    """Held-out runs of each version, and of the base model; those of the last four are compared with the best one's."""


@dataclass(slots=True)
class Run:
    """What happened, in episodes."""

    bad_live: int | None = None
    """Live episodes on trial until the first rollback."""
    frozen: int | None = None
    """Live episodes on trial until a guard first froze a version."""
    bad_tag: int = 0
    """Episodes of the first tag from the first version on, until the first rollback."""
    kept: list[str] = field(default_factory=list)
    """Tags that a version was taken back for alone, in this order."""
    accepted: list[int] = field(default_factory=list)
    rollbacks: int = 0
    worst: float = 0.0
    """Most that the served version's quality was below the base model's."""
    mean: float = 0.0
    """Mean quality that episodes got."""
    held: float = 0.0
    """Share of episodes that another arm than the live one got."""
    waited: int = 0
    rescaled: int = 0
    """Changes of scale that the gate saw, or was told of."""
    ended: float = math.inf
    """Episodes until the first rollback."""


class Simulation:
    def __init__(self, world: World, seed: int, settings: TrialSettings | None = None) -> None:
        self.world = world
        self.coin = random.Random(seed)
        self.key = f"k{seed}"
        guards: dict[str, Direction] = {} if world.side is None else {world.side[0]: "up"}
        rules = TrialSettings(holdout=world.holdout, shifts=False, guards=guards, group_alone=world.alone)
        self.trial = GateTrial(settings or rules)
        self.kept: dict[str, str] = {}
        self.quality = {0: world.base}
        self.made = 0
        """The newest version that the trainer has published."""
        self.number, self.tasks = count(), count()
        self.due: dict[int, list[ArmOutcome]] = defaultdict(list)
        self.scores: dict[int, list[float]] = {}
        """Of held-out runs."""
        self.group: list[tuple[int, str, str, int]] = []
        self.run = Run()

    def play(self) -> Run:
        world, run = self.world, self.run
        for _ in range(world.warm):
            task = self.task()
            reward = (world.before or world.reward)(self.coin, task, world.base)
            run_before = outcome_of(0, "live", "", f"t{task}", reward)
            if world.tags and world.known:
                run_before.groups = (TAG.format(self.coin.randrange(world.tags)),)
            self.trial.observe(run_before)
        live, total, held = 0, 0.0, 0
        for i in range(world.episodes):
            if i % world.every == 0:
                self.publish()
            self.maybe_serve()
            tag = self.coin.randrange(world.tags) if world.tags else None
            version, arm, chances, task = self.assigned(tag)
            on_trial = arm == "live" and version == self.trial.tried != self.trial.best
            live += on_trial
            held += arm != "live"
            total += self.quality[version]
            run.worst = max(run.worst, world.base - self.quality[self.trial.live])
            self.finish(i, version, arm, chances, task, tag)
            for outcome in self.due.pop(i, ()):
                decision = self.trial.observe(outcome)
                if run.frozen is None and is_frozen(self.trial):
                    run.frozen = live
                if decision is not Decision.UNDECIDED and self.decide(decision) and run.bad_live is None:
                    run.bad_live = live
            if run.rollbacks and world.stop:
                break
        run.mean, run.held = total / (i + 1), held / (i + 1)
        run.rescaled = self.trial.rescaled
        return run

    def publish(self) -> None:
        self.made += 1
        self.quality[self.made] = self.world.qualities[min(self.made, len(self.world.qualities)) - 1]
        for version in (0, self.made) if self.world.held_out else ():
            scores = [self.world.reward(self.coin, i, self.quality[version]) for i in range(self.world.held_out)]
            self.scores.setdefault(version, []).extend(scores)
        if self.scores:
            after = range(max(self.made - 3, self.trial.best + 1), self.made + 1)
            later = [x for v in after for x in self.scores[v]]
            self.trial.hold_out(held_out(self.scores.get(self.trial.best, [])), held_out(later))

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

    def assigned(self, tag: int | None = None) -> tuple[int, str, str, int]:
        task = self.task()
        trial = self.trial
        names = {f"m@{v}": v for v in (trial.control, trial.best, trial.tried)} | {"m@0": 0}
        tags = {} if tag is None else {"customer": str(tag)}
        arms = [(f"m@{v}", arm, share) for v, arm, share in arms_of(trial)]
        got = assign(
            f"m@{trial.live}",
            arms,
            self.key,
            f"t{task}",
            f"e{self.run.waited}-{next(self.number)}",
            "train",
            tags,
            self.kept,
        )
        return names[got.adapter], got.arm, got.chances, task

    def finish(self, i: int, version: int, arm: str, chances: str, task: int, tag: int | None = None) -> None:
        """The episode ends; when its reward is known is the world's."""
        world, coin = self.world, self.coin
        if not world.ruler:
            self.run.bad_tag += tag == 0 and not self.run.rollbacks and not self.kept
            reward = world.reward(coin, task, self.quality_for(version, tag))
            wait = world.delay
            if world.late:
                wait = coin.randrange(1, 30) + (0 if reward > 0.5 else coin.randrange(50, 200))
            outcome = outcome_of(version, arm, chances, f"t{task}", reward, tried_of(chances))
            outcome.groups = () if tag is None else (TAG.format(tag),)
            if world.side is not None:
                outcome.measures = {world.side[0]: world.side[1](coin, version > 0)}
            self.due[i + wait].append(outcome)
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

    def quality_for(self, version: int, tag: int | None) -> float:
        world, quality = self.world, self.quality[version]
        if not version or tag is None or world.collapsed is None:
            return quality
        return world.collapsed if tag == 0 else quality + (quality - world.collapsed) / (world.tags - 1)

    def decide(self, decision: Decision) -> bool:
        """→ Whether something was taken back."""
        if decision is Decision.ACCEPT:
            self.run.accepted.append(self.trial.tried)
            self.trial.accept()
            return False
        worst = worst_group(self.trial)
        if decision is Decision.ROLLBACK_GROUP and worst is not None:
            self.run.kept.append(worst[0])
            self.kept[worst[0]] = "m@0"
            self.trial.keep_from(frozenset(self.kept))
            return False
        self.run.ended = self.run.ended if self.run.rollbacks else next(self.number)
        self.run.rollbacks += 1
        self.trial.roll_back(decision is Decision.ROLLBACK_BEST, self.made)
        return True


def held_out(scores: list[float]) -> HeldOut:
    return HeldOut(len(scores), statistics.fmean(scores), statistics.pstdev(scores)) if scores else HeldOut()


def tried_of(chances: str) -> int | None:
    """The version that was on trial at an assignment."""
    name = tried(chances)
    return int(name.removeprefix("m@")) if name is not None else None
