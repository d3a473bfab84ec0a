"""A thousand runs of a world at once: ``python -m benchmarks.gate.side_by_side [--runs 1000]``.

The shipped bets on rewards, beside the control and beside the best version, as arrays over runs; a test holds that they
are the shipped ones. Shares follow suspicion as they do there. There are no groups, guards, timeouts or scale, and
nothing is accepted, so evidence is never given up: a world in which this is seldom wrong is one for the shipped gate.
It plays the worlds of ``hard_worlds`` whose rewards are successes. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.gate.hard_worlds import NULL_WORLDS, WORSE_WORLDS, HardWorld, eased, rewarded, weekly
from benchmarks.harness import report

from slipstream.shared.error_budget import BEST_STAKE, CONTROL_STAKE
from slipstream_proxy.control.gate.baseline import CONTROL_MEMORY
from slipstream_proxy.control.gate.detector import (
    BET_SIZES,
    BET_WEIGHTS,
    EDGE_DISTANCE,
    FIRST_RATE,
    LEAST_RATE,
    MAX_APART,
    MAX_EVIDENCE,
    RATES_MEMORY,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

ALPHA: Final = 0.01
LUMP, RATE = CONTROL_STAKE.at_first + BEST_STAKE.at_first, CONTROL_STAKE.per_run + BEST_STAKE.per_run
KINDS: Final = (rewarded, eased, weekly)
LIVE_SHARE, EVEN_SHARE, SOME_DOUBT = 0.9, 0.5, 0.4
YOUNG_RUNS, YOUNG_SHARE = 12, 0.7


class BetsSideBySide:
    """As ``BettingDetector``, of as many runs as there are worlds. Axes: poor or good, world, bet."""

    def __init__(self, worlds: int, lump: float, rate: float) -> None:
        self.lump, self.rate = lump, rate
        self.wealths = np.zeros((2, worlds, len(BET_SIZES)))
        self.credit, self.put = np.full(worlds, lump), np.zeros(worlds)
        self.score, self.square = np.zeros(worlds), np.zeros(worlds)
        self.spare, self.apart = np.full(worlds, MAX_APART), np.ones(worlds)
        self.means, self.n = np.full((2, worlds), FIRST_RATE), 1.0
        self.start()

    def start(self) -> None:
        totals, apart = self.wealths.sum(axis=2), self.apart
        least = totals.min(axis=0)
        used = least / np.minimum(totals[0] * np.minimum(apart, 1.0), totals[1] / np.maximum(apart, 1.0)).clip(1e-300)
        self.spare = np.where(least > 0.0, np.maximum(self.spare / used.clip(1.0), 1.0), self.spare)
        most = self.spare * least
        near = np.where(totals > most, most / np.maximum(totals, 1e-300), 1.0)
        self.wealths = self.wealths * near[:, :, None] + self.credit[:, None] * np.array(BET_WEIGHTS)
        self.put += self.credit
        self.credit[:] = 0.0
        poor, good = self.wealths.sum(axis=2)
        self.apart = good / poor

    def see(self, x: Floats, expected: Floats, tested: Flags, share: Floats, rated: Flags) -> None:
        """``rated``: whether the world's run has a reward."""
        self.credit = np.where(rated, np.minimum(self.credit + self.rate, self.lump), self.credit)
        score = np.where(tested, (x - expected) / share, (expected - x) / (1.0 - share)) * rated
        self.score += score
        self.square += score * score
        at = np.clip(expected, EDGE_DISTANCE, 1.0 - EDGE_DISTANCE)
        poor, good = np.maximum(at - x, 0.0) / at * rated, np.maximum(x - at, 0.0) / (1.0 - at) * rated
        self._bet(self.wealths[0], 1.0 - poor, 1.0 - self.means[0], tested, share)
        self._bet(self.wealths[1], good, self.means[1], tested, share)
        self.n = min(self.n + 1.0, RATES_MEMORY)
        self.means += (np.stack((poor, good)) - self.means) / self.n

    def _bet(self, row: Floats, x: Floats, guess: Floats, tested: Flags, share: Floats) -> None:
        p0 = np.clip(guess, LEAST_RATE, 1.0 - LEAST_RATE)[:, None]
        tilted = p0 / (1.0 - p0) * np.array(BET_SIZES)
        p1 = tilted / (1.0 + tilted)
        mean = share[:, None] * p1 + (1.0 - share)[:, None] * p0
        p, won = np.where(tested[:, None], p1, p0), x[:, None]
        factor = won * p / mean + (1.0 - won) * (1.0 - p) / (1.0 - mean)
        row[:] = np.minimum(row * factor, MAX_EVIDENCE)

    @property
    def wealth(self) -> Floats:
        least: Floats = self.wealths.sum(axis=2).min(axis=0)
        return least


def _live_share(bets: BetsSideBySide, i: int) -> Floats:
    """As ``suspicion.by_rewards`` and ``shares`` have it."""
    growth = bets.wealth / bets.put
    z = bets.score / np.sqrt(np.maximum(bets.square, 1e-12))
    doubt = np.maximum(
        np.where(growth > 2.0, 1.0, np.where(growth > 1.5, SOME_DOUBT, 0.0)),
        np.where(z < -1.6, 1.0, np.where(z < -1.0, SOME_DOUBT, 0.0)),
    )
    usual = YOUNG_SHARE if i < YOUNG_RUNS else LIVE_SHARE
    share: Floats = usual - (usual - EVEN_SHARE) * doubt
    return share


def _chances(world: HardWorld, i: int, version: int) -> tuple[float, float, float, float]:
    """→ (success of the control, of what is tested, and the chances that these are rated), at a run."""
    at = i + world.warm
    wave = math.sin(2.0 * math.pi * at / world.period)
    moved = world.drift * (math.copysign(1.0, wave) if world.bursts else wave)
    task = at if world.tasks == "never" else (at // 8) % 50
    found = []
    for quality in (world.base, world.qualities[min(version, len(world.qualities)) - 1]):
        q = min(max(quality + moved, 0.001), 0.999)
        if world.reward is eased:
            q += (0.5 if task % 2 else -0.5) * min(q, 1.0 - q)
        found.append(q - (0.3 if world.reward is weekly and task // 100 % 7 > 4 else 0.0))
    if world.rates is not None:
        return found[0], found[1], world.rates(task, False), world.rates(task, True)
    now = world.rated * world.fading ** (at / world.episodes)
    more = world.ratios[(version - 1) % len(world.ratios)] if world.ratios else world.ratio
    return found[0], found[1], min(now, 1.0), min(now * more, 1.0)


def play(world: HardWorld, runs: int, seed: int = 0) -> Floats:
    """→ of each run the episodes until the evidence reached its threshold; ``inf``: it did not."""
    coin, bets = np.random.default_rng(seed), BetsSideBySide(runs, LUMP, RATE)
    warm = max(world.warm * min(world.rated, 1.0), 1.0)
    expected = coin.binomial(round(warm), world.base, runs) / round(warm)
    known, ended = np.full(runs, warm), np.full(runs, math.inf)
    for i in range(world.episodes):
        if i and i % world.every == 0:
            bets.start()
        share = _live_share(bets, i)
        tested = coin.random(runs) < share
        control, later, of_control, of_later = _chances(world, i, 1 + i // world.every)
        x = (coin.random(runs) < np.where(tested, later, control)).astype(np.float64)
        rated = coin.random(runs) < np.where(tested, of_later, of_control)
        bets.see(x, expected, tested, share, rated)
        taught = rated & ~tested
        known = np.where(taught, np.minimum(known + 1.0, CONTROL_MEMORY), known)
        expected = np.where(taught, expected + (x - expected) / known, expected)
        ended = np.where(np.isinf(ended) & (bets.wealth >= 1.0 / ALPHA), i + 1.0, ended)
        if not np.isinf(ended).any():
            break
    return ended


def is_played(world: HardWorld) -> bool:
    """Whether rewards are successes that some runs lack, and nothing but rewards is looked at."""
    aside = world.canary or world.graded or world.sticky or world.declares or world.polite or world.lost_failures
    sparse = world.rates is not None or world.rated < 1.0
    return world.reward in KINDS and sparse and not aside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="of a world, side by side")
    args = parser.parse_args()
    figures: dict[str, list[float | None]] = {}
    print(f"{'world':56} taken back   episodes: median")
    for name, world in {**NULL_WORLDS, **WORSE_WORLDS}.items():
        if not is_played(world):
            continue
        ended = play(world, args.runs)
        back, median = float(np.isfinite(ended).mean()), float(np.median(ended))
        print(f"{name:56} {back:10.2%} {median:18,.0f}", flush=True)
        figures[name] = [round(back, 4), None if math.isinf(median) else median]
    report({"side_by_side": figures, "runs": args.runs})


if __name__ == "__main__":
    main()
