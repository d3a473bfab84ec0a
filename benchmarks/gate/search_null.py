"""Looks for the null world that the gate gets wrong most often: ``python -m benchmarks.gate.search_null --rounds 40``.

A random search within one family: rates of rating and their ratio, mean, drift and its period, steps, autocorrelation,
rates by the reward, declared changes, tags, shares, canary or guard. Each round changes the worst worlds so far. A world's
score is how often it was wrong, and a little for the most evidence that came up: so it climbs where nothing is wrong
yet. Of many worlds some look bad by chance, so the worst are played again with other seeds (``--again``): the last
lines say how often these were wrong. The worst that it found stand in ``hard_worlds.FOUND_WORLDS``, which the tests and
``all_worlds`` play.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import time
from dataclasses import fields, replace
from functools import partial

from benchmarks.gate.compiled_gate import COMPILED
from benchmarks.gate.hard_worlds import HardSimulation, HardWorld, equal

KEPT = 6
"""Worst worlds that the next ones are made of."""


def anywhere(coin: random.Random) -> HardWorld:
    """A world of the family in which all versions are alike."""
    return equal(
        coin.choice((0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98)),
        rated=coin.choice((0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)),
        ratio=coin.choice((0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0)),
        ratios=coin.choice(((), (), (0.25, 4.0, 0.5, 2.0), (2.0, 0.25, 1.0))),
        kinds=coin.choice(((), (), ((1.0, 0.3), (2.0, 1.0)), ((1.0, 0.3),), ((3.0, 1.0), (3.0, 1.0), (1.0, 0.5)))),
        fading=coin.choice((1.0, 1.0, 0.25, 4.0)),
        canary=coin.random() < 0.3,
        share=coin.choice((0.02, 0.1, 0.5, 0.8)),
        holdout=coin.choice((0.02, 0.1, 0.3)),
        drift=coin.choice((0.0, 0.1, 0.3, 0.5)),
        period=coin.choice((60, 200, 800, 3000)),
        bursts=coin.random() < 0.5,
        sticky=coin.choice((0.0, 0.9, 0.98)),
        graded=coin.random() < 0.3,
        declares=coin.choice((0, 0, 0, 12)),
        nested=coin.choice((0, 0, 0, 64)),
        polite=coin.choice((0.0, 0.2, 0.6)),
        every=coin.choice((16, 64, 500, 100_000)),
        delay=coin.choice((0, 0, 100)),
        episodes=3000,
    )


def changed(world: HardWorld, coin: random.Random) -> HardWorld:
    """With two of its numbers drawn anew."""
    other = anywhere(coin)
    names = coin.sample([f.name for f in fields(world) if getattr(world, f.name) != getattr(other, f.name)], k=2)
    found = replace(world, **{name: getattr(other, name) for name in names})
    return replace(found, base=other.base, qualities=other.qualities) if {"base", "qualities"} & {*names} else found


def is_null(world: HardWorld) -> bool:
    """Where nearly all of the control's runs are rated, a run without a reward has failed: rating less is worse."""
    least = min(*(world.ratios or (world.ratio,)), *(min(kind) for kind in world.kinds), 1.0)
    return least >= 1.0 or max(world.rated, world.rated * world.fading) <= 0.88


def score(world: HardWorld, seed: int) -> tuple[float, float]:
    """→ (1.0 if something was taken back or frozen, the most evidence as a logarithm of its part of the threshold)."""
    simulation = HardSimulation(world, seed)
    run = simulation.play()
    return float(run.rollbacks > 0 or run.frozen is not None), simulation.most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=math.inf, help="look no longer; to play again takes more")
    parser.add_argument("--again", type=int, default=200, help="runs of each of the worst, in the end")
    parser.add_argument("--runs", type=int, default=24, help="runs of a world")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"{args.jobs} processes, {'compiled' if COMPILED else 'not compiled'}", flush=True)
    began = time.monotonic()
    coin, worst = random.Random(args.seed), list[tuple[float, float, HardWorld]]()
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for _ in range(args.rounds):
            if time.monotonic() - began > args.seconds:
                break
            fresh = len(worst) < KEPT or coin.random() < 0.25
            world = anywhere(coin) if fresh else changed(coin.choice(worst)[2], coin)
            if not is_null(world):
                continue
            found = pool.map(partial(score, world), range(args.runs))
            wrong = sum(w for w, _ in found) / len(found)
            evidence = sorted(most for _, most in found)[-max(len(found) // 8, 1)]
            worst = sorted([*worst, (wrong, evidence, world)], key=lambda one: -(one[0] + 0.02 * one[1]))[:KEPT]
            if any(one[2] is world for one in worst):
                print(f"{wrong:.3f} {evidence:+.2f} {world}", flush=True)
        for *_, world in worst:
            found = pool.map(partial(score, world), range(args.runs, args.runs + args.again), 1)
            print(f"again: wrong in {sum(w for w, _ in found):.0f} of {len(found)}: {world}", flush=True)


if __name__ == "__main__":
    main()
