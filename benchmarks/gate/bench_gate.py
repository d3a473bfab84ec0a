"""Does the gate hold its promises? Simulations with the shipped code: ``python benchmarks/gate/bench_gate.py``.

Every cell is ``--runs`` independent runs, spread over ``--jobs`` processes. The default of 1,000 takes about 3,300 CPU
seconds, and a third of that where mypyc is there to compile the gate. ``--runs 100`` has wide error bars. With
``PYTHONPATH=proxy`` the standard library alone is enough. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from slipstream_proxy import compiled

SAY = 15.0
"""Seconds between two words on a cell that takes long."""
MODULES = ("assignment.py", *(f"control/gate/{n}.py" for n in ("scale", "baseline", "detector", "outcome", "trial")))


def use_compiled() -> bool:
    """The same sources, compiled: about three times as fast."""
    try:
        compiled.build(MODULES)
    except Exception as e:
        print(f"not compiled, so slow: {e}", file=sys.stderr)
    return compiled.use(MODULES)


COMPILED = use_compiled()
sys.path.insert(0, str(Path(__file__).parent))
from simulation import Run, Simulation, World  # noqa: E402  (after the compiled modules are in place)


def success(coin: random.Random, task: int, quality: float) -> float:
    """1 or 0. Half of the tasks are easier, half are harder; their mean is the quality."""
    spread = 0.5 * min(quality, 1.0 - quality)
    return float(coin.random() < quality + (spread if task % 2 else -spread))


NULLS: dict[str, Callable[[random.Random], float]] = {
    "binary": lambda c: float(c.random() < 0.7),
    "rare success": lambda c: float(c.random() < 0.02),
    "normal": lambda c: c.gauss(0, 1),
    "lognormal 1": lambda c: math.exp(c.gauss(0, 1)),
    "-lognormal 1": lambda c: -math.exp(c.gauss(0, 1)),
    "lognormal 2": lambda c: math.exp(c.gauss(0, 2)),
    "-lognormal 2": lambda c: -math.exp(c.gauss(0, 2)),
    "rare -10": lambda c: -10.0 if c.random() < 0.02 else c.random(),
    "rare -100": lambda c: -100.0 if c.random() < 0.01 else c.random(),
    "0 to 0.01": lambda c: c.random() * 0.01,
    "0 to 1e6": lambda c: c.random() * 1e6,
    "all equal": lambda _: 1.0,
}


def null(name: str, coin: random.Random, task: int, quality: float) -> float:
    return NULLS[name](coin)


@dataclass(frozen=True)
class Cell:
    name: str
    world: World
    limit: int = 0
    """Live episodes within which a rollback is in time."""


def power_cells() -> list[Cell]:
    zero = World(1.0, (0.0,), success, episodes=2000)
    four, six = World(0.7, (0.4,), success, episodes=4000), World(0.7, (0.6,), success, episodes=20_000)
    cells = []
    for name, world, limit in (
        ("0 against 1", zero, 40),
        ("0.4 against 0.7", four, 400),
        ("0.6 against 0.7", six, 3000),
    ):
        more = int(limit * 1.5)
        cells += [
            Cell(name, world, limit),
            Cell(f"{name}, tasks never repeat", replace(world, tasks="never"), more),
            Cell(f"{name}, RULER scores", replace(world, ruler=True), more),
            Cell(f"{name}, late rewards", replace(world, late=True), more + 230),
        ]
    return cells


def null_cells() -> list[Cell]:
    cells = [Cell(name, World(0.7, (0.7,), partial(null, name))) for name in NULLS]
    alike = World(0.7, (0.7,), success)
    cells += [Cell("late", replace(alike, late=True)), Cell("RULER", replace(alike, ruler=True))]
    return [
        *cells,
        Cell("one version only", replace(alike, every=2000)),
        Cell("all rewards 200 late", replace(alike, delay=200)),
        Cell("holdout 2 %", replace(alike, holdout=0.02)),
        Cell("tasks never repeat", replace(alike, tasks="never")),
    ]


def run_one(world: World, seed: int) -> Run:
    return Simulation(world, seed).play()


class Walking(Simulation):
    """After a rollback the trainer goes on from the version that is served."""

    def publish(self) -> None:
        coin = self.coin
        before = (
            self.quality.get(self.made, self.world.base)
            if self.made > self.trial.floor
            else self.quality[self.trial.live]
        )
        spoiled = coin.random() < 0.02
        quality = before * coin.uniform(0.0, 0.7) if spoiled else before + coin.gauss(0.004, 0.01)
        self.made += 1
        self.quality[self.made] = min(max(quality, 0.02), 0.98)


def walk_one(world: World, seed: int) -> Run:
    return Walking(world, seed).play()


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


class Bench:
    def __init__(self, runs: int, jobs: int) -> None:
        self.runs, self.jobs = runs, jobs
        self.pool = multiprocessing.get_context("fork").Pool(jobs)
        self.began = time.monotonic()
        self.figures: dict[str, float] = {}

    def all(self, name: str, world: World, one: Callable[[World, int], Run] = run_one) -> list[Run]:
        """Seeds 0 to ``runs`` - 1 of one cell, in order. Says on standard error how far it is."""
        found: list[Run] = []
        said = time.monotonic()
        for run in self.pool.imap(partial(one, world), range(self.runs), max(min(self.runs // (4 * self.jobs), 8), 1)):
            found.append(run)
            if time.monotonic() - said > SAY:
                said = time.monotonic()
                print(f"  {said - self.began:5.0f} s: {name}, {len(found):,} of {self.runs:,} runs", file=sys.stderr)
        return found

    def power(self) -> None:
        print(f"\n{'taken back':38} in time   live episodes: median  90 %  99 %   within")
        for cell in power_cells():
            live = [math.inf if r.bad_live is None else r.bad_live for r in self.all(cell.name, cell.world)]
            share = sum(n <= cell.limit for n in live) / len(live)
            points = [quantile(live, q) for q in (0.5, 0.9, 0.99)]
            print(
                f"{cell.name:38} {share:7.1%}   {points[0]:21.0f} {points[1]:5.0f} {points[2]:5.0f} {cell.limit:8d}",
                flush=True,
            )
            self.figures[f"in_time: {cell.name}"] = round(share, 4)
            if cell.name == "0 against 1":
                self.figures["bad_episodes_p99"] = points[2]

    def false_alarms(self) -> None:
        print(f"\n{'no difference, 2,000 episodes':38} taken back   accepted   not live")
        worst = 0.0
        for cell in null_cells():
            runs = self.all(cell.name, cell.world)
            share = sum(r.rollbacks > 0 for r in runs) / len(runs)
            accepted, held = mean([len(r.accepted) for r in runs]), mean([r.held for r in runs])
            print(f"{cell.name:38} {share:10.2%} {accepted:10.2f} {held:10.1%}", flush=True)
            worst = max(worst, share)
        self.figures["false_rollbacks_worst"] = round(worst, 4)

    def drift(self) -> None:
        """Both with the default pace and with the one that never waits."""
        print("\nten adapters, 1,000 episodes each")
        worse = World(0.7, tuple(0.7 - 0.02 * i for i in range(1, 11)), success, every=1000, episodes=10_000)
        better = World(0.6, tuple(0.6 + 0.02 * i for i in range(1, 11)), success, every=1000, episodes=10_000)
        for pace in ("careful", "go"):
            which = "" if pace == "careful" else f": {pace}"
            runs = self.all(f"2 % worse, {pace}", replace(worse, pace=pace))
            kept, back = share_of(runs, lambda r: r.worst <= 0.1001), share_of(runs, lambda r: r.rollbacks > 0)
            print(f"{pace:8} 2 % worse each: at most 0.10 lost in {kept:.1%}; taken back in {back:.1%}", flush=True)
            runs = self.all(f"2 % better, {pace}", replace(better, pace=pace))
            none, accepted = share_of(runs, lambda r: not r.rollbacks), mean([len(r.accepted) for r in runs])
            last = share_of(runs, lambda r: bool(r.accepted) and r.accepted[-1] >= 9)
            print(
                f"{pace:8} 2 % better each: none taken back in {none:.1%}; "
                f"accepted {accepted:.2f} of 10, one of the last two in {last:.1%}",
                flush=True,
            )
            self.figures |= {
                f"drift_kept{which}": round(kept, 4),
                f"improving_kept{which}": round(none, 4),
                f"improving_accepted{which}": round(accepted, 2),
            }

    def pace(self) -> None:
        print("\npace: mean quality over 10,000 episodes of a trainer that gets better and spoils one version in fifty")
        best: tuple[float, str] = (0.0, "")
        for pace in ("careful", "go", 1, 4):
            world = World(0.5, (), success, episodes=10_000, stop=False, pace=pace)
            got = [r.mean for r in self.all(f"pace {pace}", world, walk_one)]
            error = (sum((g - mean(got)) ** 2 for g in got) / len(got)) ** 0.5 / len(got) ** 0.5
            print(f"{pace!s:10} {mean(got):.4f} ± {error:.4f}", flush=True)
            self.figures[f"pace: {pace}"] = round(mean(got), 4)
            best = max(best, (mean(got), str(pace)))
        print(f"most: {best[1]}")


def share_of(runs: list[Run], which: Callable[[Run], bool]) -> float:
    return sum(which(r) for r in runs) / len(runs)


def mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs of a cell")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--only", choices=["power", "false_alarms", "drift", "pace"], action="append")
    args = parser.parse_args()
    bench = Bench(args.runs, args.jobs)
    print(f"{args.runs:,} runs a cell, {args.jobs} processes, {'compiled' if COMPILED else 'not compiled'}", flush=True)
    for part in args.only or ["power", "false_alarms", "drift", "pace"]:
        getattr(bench, part)()
    bench.figures["seconds"] = round(time.monotonic() - bench.began, 1)
    print(json.dumps({"runs": args.runs, **bench.figures}))


if __name__ == "__main__":
    main()
