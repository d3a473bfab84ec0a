"""Worlds in which a gate is easily wrong: few rated runs, rates that differ by arm, drift of both arms, autocorrelation,
changes of scale that are none, slow slides, and what is rare. ``null_of`` has all equal ones as one family of numbers,
in which ``search_null.py`` looks for the worst.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.gate.simulation import TAG, Reward, Run, Simulation, World

from slipstream_proxy.assignment import BEST_ARM, CANDIDATE_ARM, CONTROL_ARM, LIVE_ARM
from slipstream_proxy.control.gate.rules import ArmOutcome, TrialSettings
from slipstream_proxy.control.gate.shares import arms_of
from slipstream_proxy.control.gate.verdict import evidence_against


@dataclass(slots=True, frozen=True)
class HardWorld(World):
    rated: float = 1.0
    """Share of the base model's runs that get a reward."""
    ratio: float = 1.0
    """Times that share, of later versions' runs."""
    ratios: tuple[float, ...] = ()
    """The same of version 1, 2, … in turn, in place of ``ratio``."""
    rates: Callable[[int, bool], float] | None = None
    """(Task, a version is tested) → a run's chance of a reward, in place of ``rated`` and ``ratio``."""
    kinds: tuple[tuple[float, float], ...] = ()
    """(Of failures, of successes) times ``rated``, of version 1, 2, … in turn, in place of ``ratio``."""
    bulk: int = 0
    """Rewards come so many runs at a time."""
    slowing: float = 0.0
    """Rewards come later by this part of all runs so far: runs get longer."""
    fading: float = 1.0
    """Times as often as at first, all runs are rated in the end."""
    lost_failures: bool = False
    """Failures alone go unrated: ``rated`` and ``ratio`` are of these."""
    canary: bool = False
    share: float = 0.5
    drift: float = 0.0
    """Most that all arms' quality moves, up and down."""
    period: int = 800
    """Episodes of one such wave."""
    bursts: bool = False
    """The waves are steps."""
    sticky: float = 0.0
    """Autocorrelation of what is added to the quality, of both arms."""
    graded: bool = False
    """Rewards are the quality plus noise, from 0 to 1; else successes."""
    declares: int = 0
    """Times that people say that the rewards changed, although they did not."""
    nested: int = 0
    """Tags of a run, each with half as many values as the next."""
    polite: float = 0.0
    """Share of runs, of both arms, with a side measure of a person; ``ratio`` holds for it too."""
    settle: int = 500


def rewarded(coin: random.Random, task: int, quality: float) -> float:
    return float(coin.random() < quality)


def eased(coin: random.Random, task: int, quality: float) -> float:
    """Every second task is easier, by as much as the others are harder."""
    spread = 0.5 * min(quality, 1.0 - quality)
    return float(coin.random() < quality + (spread if task % 2 else -spread))


def two_raters(coin: random.Random, task: int, quality: float) -> float:
    """In turn: one gives 0 or 1, the other 2 to 10."""
    won = coin.random() < quality
    return float(won) if task // 300 % 2 else (coin.uniform(6.0, 10.0) if won else coin.uniform(2.0, 6.0))


def signed(coin: random.Random, task: int, quality: float) -> float:
    """-1, 0 or 1."""
    return float((coin.random() < quality) + (coin.random() < quality) - 1)


def heavy(coin: random.Random, task: int, quality: float) -> float:
    """Their median is the quality; one in a hundred is a hundred times that."""
    return quality * math.exp(coin.gauss(0.0, 2.0))


def later_clipped(coin: random.Random, task: int, quality: float) -> float:
    return min(heavy(coin, task, quality), 1.0 if task > 2000 else math.inf)


def weekly(coin: random.Random, task: int, quality: float) -> float:
    """Two days of seven, of a hundred runs each, bring harder tasks."""
    return float(coin.random() < quality - (0.3 if task // 100 % 7 > 4 else 0.0))


def weekly_rates(task: int, tested: bool) -> float:
    return (0.1 if task // 100 % 7 > 4 else 0.5) * (0.5 if tested else 1.0)


def task_rates(task: int, tested: bool) -> float:
    """Easier tasks are rated more often at first and less often later."""
    wave = 0.5 + 0.4 * math.sin(task / 300.0) * (1 if task % 2 else -1)
    return 0.5 * wave * (0.5 if tested else 1.0)


def task_ratio(easy: float, hard_ones: float, task: int, tested: bool) -> float:
    """Users rate a version more or less often, by the task."""
    return 0.2 * ((easy if task % 2 else hard_ones) if tested else 1.0)


def worst_rates(task: int, tested: bool) -> float:
    """One task of fifty alone is rated."""
    return float(task % 50 == 0)


def rarer_and_rarer(task: int, tested: bool) -> float:
    return max(1.0 - task / 6000.0, 0.3)


def then_few(first: int, of_control: float, of_tested: float, task: int, tested: bool) -> float:
    """All runs are rated until then."""
    return 1.0 if task < first else of_tested if tested else of_control


def fallen_away(task: int, tested: bool) -> float:
    """To a quarter, within 75 runs or 900."""
    return max(1.0 - max(task - 900, 0) / (100.0 if tested else 1200.0), 0.25)


class HardSimulation(Simulation):
    world: HardWorld

    def __init__(self, world: HardWorld, seed: int) -> None:
        guards = {"reward.polite": "down"} if world.polite else {}
        rules = TrialSettings(
            canary=world.canary,
            share=world.share,
            holdout=world.holdout,
            shifts=False,
            settle=world.settle,
            guards=guards,  # type: ignore[arg-type]
        )
        super().__init__(world, seed, rules)
        self.noise = 0.0
        self.at = 0
        self.shares: dict[str, float] = {}
        """Of the arms beside the live one, at the newest assignment."""
        self.most = -math.inf
        """The most evidence against what was served, as a logarithm of its part of the threshold."""

    def play(self) -> Run:
        for _ in range(self.world.warm):
            self._observe(0, LIVE_ARM, self.task(), None)
        self.world = replace(self.world, warm=0)
        return Simulation.play(self)

    def assigned(self, tag: int | None = None) -> tuple[int, str, str, int]:
        """As ``assign``, by a coin of its own: a hash of names takes half of a run's time."""
        trial, at = self.trial, self.coin.random()
        next(self.number)
        arms = [(version, arm, share) for version, arm, share in arms_of(trial) if share > 0.0]
        self.shares = {arm: share for _, arm, share in arms}
        for version, arm, share in arms:
            if at < share:
                return version, arm, "", self.task()
            at -= share
        return trial.live, LIVE_ARM, "", self.task()

    def finish(self, i: int, version: int, arm: str, chances: str, task: int, tag: int | None = None) -> None:
        if self.world.declares and i and i % (self.world.episodes // (self.world.declares + 1)) == 0:
            self.trial.declare(float(self.at))
        self._observe(version, arm, task, i)

    def _outcome(self, version: int, arm: str, task: int, reward: float, alone: bool) -> ArmOutcome:
        if alone or not self.shares:
            return ArmOutcome(version, arm, 0.0, 0.0, 0.0, 0.0, f"t{task}", reward)
        control, best, candidate = (self.shares.get(one, 0.0) for one in (CONTROL_ARM, BEST_ARM, CANDIDATE_ARM))
        live = 1.0 - control - best - candidate
        tried = self.trial.tried if candidate or not self.trial.settings.canary else self.trial.live
        return ArmOutcome(version, arm, live, control, best, candidate, f"t{task}", reward, tried)

    def _observe(self, version: int, arm: str, task: int, i: int | None) -> None:
        world, coin = self.world, self.coin
        self.at += 1
        wave = math.sin(2.0 * math.pi * self.at / world.period)
        moved = world.drift * (math.copysign(1.0, wave) if world.bursts else wave)
        if world.sticky:
            self.noise = world.sticky * self.noise + math.sqrt(1.0 - world.sticky**2) * coin.gauss(0.0, 0.2)
        quality = min(max(self.quality[version] + moved + self.noise, 0.001), 0.999)
        reward = world.reward(coin, task, quality)
        if world.graded:
            reward = min(max(quality + coin.gauss(0.0, 0.05), 0.0), 1.0)
        more = world.ratio if version else 1.0
        if version and world.ratios:
            more = world.ratios[(version - 1) % len(world.ratios)]
        if version and world.kinds:
            more = world.kinds[(version - 1) % len(world.kinds)][reward > 0.5]
        now = world.rated * world.fading ** (self.at / world.episodes)
        chance = world.rates(task, version > 0) if world.rates else min(now * more, 1.0)
        rated = coin.random() < chance
        if world.lost_failures:
            rated = rated or reward > 0.5
        outcome = self._outcome(version, arm, task, reward if rated else 0.0, i is None)
        outcome.finished, outcome.at = rated, float(self.at)
        outcome.seconds = 1.0 if rated else None
        outcome.groups = tuple(
            TAG.format(f"{level}-{coin.randrange(2**level)}") for level in range(1, world.nested.bit_length())
        )
        if world.polite and coin.random() < min(world.polite * more, 1.0):
            outcome.measures = {"reward.polite": float(coin.random() < quality)}
        if i is None:
            self.trial.observe(outcome)
        else:
            due = i + world.delay + int(world.slowing * i)
            self.due[due + (-due % world.bulk if world.bulk else 0)].append(outcome)
        against = evidence_against(self.trial)
        self.most = max(self.most, math.log(max(against, 1e-12) * self.trial.settings.alpha))


def hard(world: World, seed: int) -> Run:
    assert isinstance(world, HardWorld)
    return HardSimulation(world, seed).play()


def equal(mean: float, **other: object) -> HardWorld:
    """All versions are alike."""
    return HardWorld(mean, (mean,), rewarded, **other)  # type: ignore[arg-type]


def of(mean: float, reward: Reward, **other: object) -> HardWorld:
    """As ``equal``, with rewards of another kind."""
    return replace(equal(mean, **other), reward=reward)


NULL_WORLDS: dict[str, HardWorld] = {
    **{
        f"rated {rated:.0%}, × {ratio:g}, mean {mean:g}": equal(mean, rated=rated, ratio=ratio, episodes=6000)
        for rated, ratio, mean in (
            (0.2, 0.5, 0.95),
            (0.4, 0.5, 0.95),
            (0.4, 0.25, 0.95),
            (0.1, 4.0, 0.6),
            (0.2, 0.25, 0.6),
            (0.02, 0.5, 0.9),
        )
    },
    "rated 20 %, × 0.5, waves": equal(0.7, rated=0.2, ratio=0.5, drift=0.25, episodes=6000),
    "rated 20 %, × 2, steps": equal(0.7, rated=0.2, ratio=2.0, drift=0.25, bursts=True, period=1500, episodes=6000),
    "rated 88 %, × 0.25": equal(0.9, rated=0.88, ratio=0.25, episodes=3000),
    "rated 20 %, each version at a rate of its own, waves": equal(
        0.65, rated=0.2, ratios=(0.25, 4.0, 0.5, 2.0), drift=0.25, period=1500, every=1000, episodes=6000
    ),
    "rated 80 % to 20 %, × 0.5, waves": equal(0.7, rated=0.8, fading=0.25, ratio=0.5, drift=0.2, episodes=6000),
    "rated 30 %, × 0.5, canary": equal(0.7, rated=0.3, ratio=0.5, canary=True, episodes=6000),
    "a side measure of 30 %, × 0.5": equal(0.6, polite=0.3, ratio=0.5, rated=0.3, episodes=6000),
    "rated 92 %, × 0.25": equal(0.9, rated=0.92, ratio=0.25, episodes=3000),
    "rated 92 %, × 0.5": equal(0.9, rated=0.92, ratio=0.5, episodes=3000),
    **{
        f"all rated, then {of_control:.0%} of the control's and {of_tested:.0%} of others, after {runs:,} runs": of(
            0.9,
            rewarded,
            tasks="never",
            warm=1000,
            every=every,
            rates=partial(then_few, runs, of_control, of_tested),
            episodes=2000,
        )
        for runs, of_control, of_tested, every in (
            (1000, 0.94, 0.235, 50_000),
            (1000, 0.94, 0.86, 50_000),
            (1000, 0.92, 0.23, 50_000),
            (1000, 0.88, 0.22, 50_000),
            (1300, 0.88, 0.22, 50_000),
            (1100, 0.22, 0.88, 64),
            (1100, 0.85, 0.6, 300),
        )
    },
    "all rated, then one arm's users fall away at once, the other's slowly": of(
        0.9, rewarded, tasks="never", warm=850, every=500, rates=fallen_away, episodes=3000
    ),
    "a small holdout, rewards that last, 35 % × 3": equal(
        0.7, rated=0.35, ratio=3.0, holdout=0.02, sticky=0.98, every=150, episodes=5000
    ),
    "rated 95 %, one version × 0.25": equal(0.9, rated=0.95, ratios=(1.0, 0.25, 1.0), every=500, episodes=3000),
    **{
        f"easy tasks rated × {easy:g}, hard ones × {hard_ones:g}": of(
            0.7, eased, tasks="never", rates=partial(task_ratio, easy, hard_ones), episodes=4000
        )
        for easy, hard_ones in ((0.25, 4.0), (0.5, 2.0), (0.25, 1.0), (1.0, 4.0))
    },
    **{
        f"failures rated more often, or successes less, in turn, each {every} runs": equal(
            0.7, rated=0.5, kinds=((1.0, 0.3), (2.0, 1.0)), every=every, episodes=4000
        )
        for every in (16, 64, 200)
    },
    "rates drift by task, × 0.5": of(0.7, eased, tasks="never", rates=task_rates, episodes=4000),
    "rated 30 %, × 0.5, in bulk": equal(0.7, rated=0.3, ratio=0.5, bulk=300, episodes=4000),
    "one task of fifty is rated": of(0.7, eased, rates=worst_rates, episodes=4000),
    "two raters in turn": of(0.7, two_raters, tasks="never", rated=0.5, ratio=0.5, episodes=4000),
    "three arms, 64 tags, rated 40 %, × 0.5": equal(
        0.8, rated=0.4, ratio=0.5, nested=64, holdout=0.3, every=700, episodes=4000
    ),
    "harder and rarer at weekends, × 0.5": of(0.7, weekly, tasks="never", rates=weekly_rates, episodes=4000),
    "longer and longer runs, rarer rewards": equal(
        0.7, tasks="never", slowing=0.2, rates=rarer_and_rarer, episodes=4000
    ),
    "-1, 0 or 1, rated 30 %, × 0.5": of(0.6, signed, rated=0.3, ratio=0.5, episodes=4000),
    "heavy tails, rated 30 %, × 0.5": of(1.0, heavy, rated=0.3, ratio=0.5, episodes=4000),
    "clipped after a while, rated 40 %, × 2": of(
        1.0, later_clipped, tasks="never", rated=0.4, ratio=2.0, episodes=4000
    ),
    "autocorrelated rewards": equal(0.5, graded=True, sticky=0.95, episodes=4000),
    "a day's curve": equal(0.5, graded=True, drift=0.3, episodes=4000),
    "12 changes of scale that are none": equal(0.7, declares=12, episodes=6000),
    "64 tags, nested": equal(0.7, nested=64, episodes=4000),
}


def slides(**other: object) -> HardWorld:
    """Each version is 2 points below the last."""
    falling = tuple(0.7 - 0.02 * i for i in range(1, 31))
    return HardWorld(0.7, falling, rewarded, every=1000, episodes=24_000, **other)  # type: ignore[arg-type]


WORSE_WORLDS: dict[str, HardWorld] = {
    "slide, canary 0.5": slides(canary=True),
    "slide, canary 0.1": slides(canary=True, share=0.1),
    "slide, guard": slides(),
    "2 % → 1 %": HardWorld(0.02, (0.01,), rewarded, warm=1000, every=50_000, episodes=20_000),
    "0.7 → 0.67": HardWorld(0.7, (0.67,), rewarded, every=50_000, episodes=20_000),
    "0.7 → 0.4, rated 10 %": HardWorld(0.7, (0.4,), rewarded, rated=0.1, every=50_000, episodes=20_000),
    "0.9 → 0, rated 20 %": HardWorld(0.9, (0.0,), rewarded, rated=0.2, every=50_000, episodes=8000),
    "0.95 → 0.75, rated 40 %, × 0.5": HardWorld(
        0.95, (0.75,), rewarded, rated=0.4, ratio=0.5, every=50_000, episodes=20_000
    ),
    **{
        name: replace(of(base, reward, every=50_000, episodes=20_000, **other), qualities=(later,))
        for name, base, later, reward, other in (
            ("0.7 → 0.4, rates drift by task", 0.7, 0.4, eased, {"tasks": "never", "rates": task_rates}),
            ("0.7 → 0.4, in bulk, rated 30 %", 0.7, 0.4, rewarded, {"rated": 0.3, "bulk": 300}),
            ("-1, 0 or 1: 0.7 → 0.5, rated 30 %", 0.7, 0.5, signed, {"rated": 0.3}),
            ("heavy tails, a third as much", 1.0, 0.33, heavy, {}),
            (
                "0.8 → 0.5, longer runs, rarer rewards",
                0.8,
                0.5,
                rewarded,
                {"tasks": "never", "slowing": 0.2, "rates": rarer_and_rarer},
            ),
        )
    },
}
"""What is to be taken back, or not to be accepted first."""


FOUND_WORLDS: dict[str, HardWorld] = {
    "few rate, and later versions half as often": equal(0.95, rated=0.4, ratio=0.5, every=16, episodes=2000),
    "rated 80 %, three times as often, a small holdout": equal(
        0.5, rated=0.8, ratio=3.0, holdout=0.02, drift=0.1, period=3000, polite=0.6, every=500, episodes=2000
    ),
    "high rewards that last, 12 changes said": equal(
        0.98,
        rated=0.3,
        ratio=0.7,
        sticky=0.98,
        graded=True,
        declares=12,
        polite=0.2,
        every=16,
        delay=100,
        episodes=2000,
    ),
    "64 tags, while all drift": equal(
        0.9, ratio=2.0, drift=0.3, period=3000, sticky=0.98, nested=64, every=100_000, episodes=2000
    ),
}
"""The worst of ``search_null``, on this code and on earlier ones."""
