"""Does the gate hold its promises? Simulations with the shipped code: ``python -m benchmarks.gate.bench_gate``.

Every cell is ``--runs`` independent runs, spread over ``--jobs`` processes. The default of 1,000 takes about 3,300 CPU
seconds, and a third of that where mypyc is there to compile the gate. ``--runs 100`` has wide error bars. With
``PYTHONPATH=proxy`` the standard library alone is enough. The last line is one JSON object. ``--out FILE`` keeps it:
figures of parts that are not run stay in the file as they are, so parts can have runs of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.gate.compiled_gate import COMPILED
from benchmarks.gate.simulation import (
    TAG,
    Reward,
    Run,
    Simulation,
    World,
)
from benchmarks.gate.timed import DURATIONS, TimedRun, TimedWorld, play
from benchmarks.harness import quantile, report, say

SAY = 15.0
"""Seconds between two words on a cell that takes long."""


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


def graded(coin: random.Random, task: int, quality: float) -> float:
    """A success has more than half of the points."""
    return coin.uniform(0.6, 1.0) if success(coin, task, quality) else coin.uniform(0.0, 0.4)


def scaled(
    reward: Callable[[random.Random, int, float], float],
    factor: float,
    shift: float,
    coin: random.Random,
    task: int,
    quality: float,
) -> float:
    return factor * reward(coin, task, quality) + shift


RESCALED: dict[str, tuple[Reward, Reward]] = {
    **{
        f"{name} × {factor:g}": (reward, partial(scaled, reward, factor, 0.0))
        for name, reward in (("binary", success), ("graded", graded))
        for factor in (0.01, 0.1, 10.0, 100.0)
    },
    "binary + 5": (success, partial(scaled, success, 1.0, 5.0)),
    "graded − 5": (graded, partial(scaled, graded, 1.0, -5.0)),
    "binary, then graded": (success, graded),
    "graded, then binary": (graded, success),
}
"""Rewards before and from version 1 on."""


def side(
    before: Callable[[random.Random], float], after: Callable[[random.Random], float], coin: random.Random, tested: bool
) -> float:
    return (after if tested else before)(coin)


def often(share: float) -> Callable[[random.Random], float]:
    return partial(_often, share)


def _often(share: float, coin: random.Random) -> float:
    return float(coin.random() < share)


def length(median: float) -> Callable[[random.Random], float]:
    return partial(_length, median)


def _length(median: float, coin: random.Random) -> float:
    return median * math.exp(coin.gauss(0.0, 0.5))


SELDOM, QUARTER, SHORT = often(0.02), often(0.25), length(300.0)
GUARDED = {
    "cut_off, 2 % → 50 %": (SELDOM, often(0.5)),
    "tool_errors, 25 % → 60 %": (QUARTER, often(0.6)),
    "reply_tokens, three times as long": (SHORT, length(900.0)),
    "cut_off, 2 % and 2 %": (SELDOM, SELDOM),
    "tool_errors, 25 % and 25 %": (QUARTER, QUARTER),
    "reply_tokens, as long": (SHORT, SHORT),
}
"""Guards whose bad direction is up: the measure of the control, and that of later versions."""
RATES = (0.1, 1.0, 10.0, 50.0)
"""Runs that begin in a second; one of the base model takes 30 seconds."""
SLOWER = (1.2, 1.5, 2.0, 4.0)
FASTEST = 0.4
"""Seconds between two versions of a real loop, at 50 runs a second."""


class Bench:
    def __init__(self, runs: int, jobs: int, cells: tuple[int, int], kept: dict[str, object]) -> None:
        """``kept``: figures of earlier parts."""
        self.runs, self.jobs, self.cells, self.kept = runs, jobs, cells, kept
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
                say(f"  {said - self.began:5.0f} s: {name}, {len(found):,} of {self.runs:,} runs")
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

    def held_out(self) -> None:
        """Success doubles over versions that come faster than rewards, and held-out runs say so. Then one fails."""
        print("\nheld-out success doubles over forty versions, 16 episodes each, rewards late")
        rising = tuple(0.3 + 0.0075 * i for i in range(1, 41))
        world = World(0.3, rising, success, every=16, episodes=1280, stop=False, late=True)
        for name, each in (("", 0), (", held-out runs", 8)):
            runs = self.all(f"rising{name}", replace(world, held_out=each))
            old, wrong = mean([r.held for r in runs]), share_of(runs, lambda r: r.rollbacks > 0)
            print(f"new episodes on older versions{name}: {old:.1%}; something taken back in {wrong:.2%}", flush=True)
            self.figures[f"older_versions{name}"] = round(old, 4)
            spoiled = replace(world, qualities=(*rising, 0.0), held_out=each, stop=True, episodes=4000)
            took = [r.ended - 640 for r in self.all("then one fails", spoiled)]
            self.figures[f"then_one_fails{name}: episodes p99"] = quantile(took, 0.99)
            print(f"then one fails: taken back after {quantile(took, 0.5)} episodes, 99 %: {quantile(took, 0.99)}")

    def timed(self, name: str, world: TimedWorld) -> list[TimedRun]:
        return self.pool.map(partial(play, world), range(self.runs), max(min(self.runs // (4 * self.jobs), 8), 1))

    def slower(self) -> None:
        """Versions that think longer, with equal and with better rewards."""
        print(f"\n{'runs that take longer, 2,000 counted':46} taken back   accepted   most waiting")
        worlds = [
            (f"{d}, {f:g} times, {q:g} against 0.6, {r:g}/s", TimedWorld(r, quality=q, slower=f, durations=d))
            for d in DURATIONS
            for f in SLOWER
            for q in (0.6, 0.8)
            for r in RATES
        ]
        real = TimedWorld(50.0, slower=4.0, durations="lognormal", every=FASTEST)
        worlds.append(("lognormal, 4 times, a version each 0.4 s, 50/s", real))
        which, of = self.cells
        for name, world in worlds[which - 1 :: of]:
            runs = self.timed(name, world)
            share = sum(r.rolled_back is not None for r in runs) / len(runs)
            accepted, most = sum(r.accepted for r in runs) / len(runs), max(r.waiting for r in runs)
            print(f"{name:46} {share:10.2%} {accepted:10.2f} {most:14,d}", flush=True)
            self.figures[f"slower_wrong: {name}"] = round(share, 4)
        every = [float(str(v)) for k, v in (self.kept | self.figures).items() if k.startswith("slower_wrong: ")]
        self.figures |= {"slower_wrong": round(mean(every), 4), "slower_wrong_worst": max(every)}

    def hanging(self) -> None:
        """No run of the version ends. And plainly bad ones, in seconds: of these some never get a reward."""
        print(f"\n{'versions that hang':38} within 1.5 deadlines   seconds: median   99 %  deadline  live runs: median")
        found = []
        for durations in DURATIONS:
            for rate in RATES:
                runs = self.timed("hang", TimedWorld(rate, slower=math.inf, durations=durations))
                took = [math.inf if r.rolled_back is None else r.rolled_back for r in runs]
                share = sum(t <= 1.5 * r.deadline for t, r in zip(took, runs, strict=True)) / len(runs)
                found.append(share)
                points = (quantile(took, 0.5), quantile(took, 0.99), quantile([r.deadline for r in runs], 0.5))
                live = quantile([float(r.live) for r in runs], 0.5)
                print(
                    f"{durations + f', {rate:g}/s':38} {share:20.1%} {points[0]:17.0f} {points[1]:6.0f} {points[2]:9.0f}"
                    f" {live:19.0f}",
                    flush=True,
                )
        self.figures["hanging_found"] = round(min(found), 4)
        print(
            f"\n{'versions that are worse, lognormal 30 s':38} taken back   seconds: median   90 %   live runs: median"
        )
        for good, bad in ((1.0, 0.0), (0.7, 0.4)):
            for rate in (1.0, 10.0):
                for lost in (0.0, 0.03):
                    world = TimedWorld(rate, base=good, quality=bad, durations="lognormal", lost=lost, counted=6000)
                    runs = self.timed("bad", world)
                    took = [math.inf if r.rolled_back is None else r.rolled_back for r in runs]
                    name = f"{bad:g} against {good:g}, {rate:g}/s, {lost:.0%} lost"
                    share = sum(not math.isinf(t) for t in took) / len(took)
                    live = quantile([float(r.live) for r in runs], 0.5)
                    print(
                        f"{name:38} {share:10.1%} {quantile(took, 0.5):17.0f} {quantile(took, 0.9):6.0f} {live:19.0f}",
                        flush=True,
                    )
                    self.figures[f"seconds: {name}"] = round(quantile(took, 0.5), 1)

    def rescale(self) -> None:
        """The scale changes with a new version: one that is as good as before, and one that always fails."""
        print(f"\n{'rewards change with a version':38} as good: taken back   fails always: accepted   taken back")
        wrong, accepted, found = [], [], []
        for name, (before, after) in RESCALED.items():
            same = World(0.7, (0.7,), after, before=before, warm=1200, every=2000)
            zero = replace(same, qualities=(0.0,), episodes=1500)
            wrong.append(share_of(self.all(name, same), lambda r: r.rollbacks > 0))
            runs = self.all(name, zero)
            accepted.append(share_of(runs, lambda r: bool(r.accepted)))
            found.append(share_of(runs, lambda r: r.rollbacks > 0))
            print(f"{name:38} {wrong[-1]:20.2%} {accepted[-1]:24.2%} {found[-1]:12.1%}", flush=True)
        self.figures |= {
            "rescale_wrong": round(max(wrong), 4),
            "rescale_accepted_bad": round(max(accepted), 4),
            "rescale_found_bad": round(min(found), 4),
        }

    def groups(self) -> None:
        """A version that fails on one value of a tag and gains elsewhere; and tags that say nothing."""
        print(f"\n{'by tag':46} taken back   accepted   episodes of the tag: median   90 %   99 %")
        bad = World(0.9, (0.9,), success, collapsed=0.1, tags=10, tasks="never", warm=1000, episodes=8000)
        found = []
        for every in (64, 100_000):
            for name, world in (
                ("0.9 → 0.1 on one of ten, net 0", bad),
                ("0.9 → 0.1 on one of five, net 0", replace(bad, tags=5, qualities=(0.82,), base=0.82)),
                ("0.7 → 0.3 on one of ten, net 0", replace(bad, base=0.7, qualities=(0.7,), collapsed=0.3)),
            ):
                runs = self.all(name, replace(world, every=every))
                took = [float(r.bad_tag) if r.rollbacks else math.inf for r in runs]
                back, accepted = share_of(runs, lambda r: r.rollbacks > 0), share_of(runs, lambda r: bool(r.accepted))
                points = [quantile(took, q) for q in (0.5, 0.9, 0.99)]
                which = f"{name}{', one version' if every > 64 else ''}"
                print(
                    f"{which:46} {back:10.1%} {accepted:10.1%} {points[0]:29.0f} {points[1]:6.0f} {points[2]:6.0f}",
                    flush=True,
                )
                if world is bad:
                    found.append(sum(t <= 400 for t in took) / len(took))
        alone = replace(bad, every=100_000, alone=True)
        runs = self.all("for that tag alone", alone)
        first = share_of(runs, lambda r: r.kept[:1] == [TAG.format(0)] and r.bad_tag <= 400)
        others = share_of(runs, lambda r: r.rollbacks > 0 or len(r.kept) > 1)
        accepted = share_of(runs, lambda r: bool(r.accepted))
        print(f"for that tag alone: {first:.1%} in 400 of its episodes; then all others keep it: {accepted:.1%}")
        print(f"another tag, or all, taken back too: {others:.2%}", flush=True)
        self.figures |= {"tag_alone_found": round(first, 4), "tag_alone_wrong": round(others, 4)}
        wrong = []
        for name, world in (
            ("20 tags, no difference", World(0.7, (0.7,), success, tags=20, warm=1000)),
            ("20 tags, one version", World(0.7, (0.7,), success, tags=20, warm=1000, every=2000)),
            ("20 tags, rewards late", World(0.7, (0.7,), success, tags=20, warm=1000, late=True)),
            ("20 tags, rare success", World(0.02, (0.02,), success, tags=20, warm=1000)),
        ):
            runs = self.all(name, world)
            wrong.append(share_of(runs, lambda r: r.rollbacks > 0))
            accepted = mean([len(r.accepted) for r in runs])
            print(f"{name:46} {wrong[-1]:10.2%} {accepted:10.2f}", flush=True)
        self.figures |= {"tag_found": round(min(found), 4), "tag_false": round(max(wrong), 4)}

    def guards(self) -> None:
        """The reward rises and a side measure gets worse; and side measures that do not."""
        print(f"\n{'guards':46} frozen   live episodes: median   90 %   99 %   accepted")
        found, wrong = [], []
        for name, (before, after) in GUARDED.items():
            measure, bad = name.split(",")[0], before != after
            world = World(0.7, (0.75,), success, side=(measure, partial(side, before, after)), every=100_000)
            runs = self.all(name, world)
            took = [math.inf if r.frozen is None else float(r.frozen) for r in runs]
            points = [quantile(took, q) for q in (0.5, 0.9, 0.99)]
            frozen, accepted = sum(not math.isinf(t) for t in took) / len(took), mean([len(r.accepted) for r in runs])
            print(
                f"{name:46} {frozen:6.1%} {points[0]:23.0f} {points[1]:6.0f} {points[2]:6.0f} {accepted:10.2f}",
                flush=True,
            )
            if bad:
                found.append(sum(t <= 400 for t in took) / len(took))
            else:
                wrong.append(frozen)
        self.figures |= {"guard_found": round(min(found), 4), "guard_false": round(max(wrong), 4)}

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


PARTS = [
    "power",
    "false_alarms",
    "drift",
    "held_out",
    "pace",
    "slower",
    "hanging",
    "rescale",
    "groups",
    "guards",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs of a cell")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--out", type=Path, help="a JSON file that the figures are added to")
    parser.add_argument("--cells", default="1/1", metavar="I/N", help="of slower: the I-th of every N cells")
    args = parser.parse_args()
    which, _, of = args.cells.partition("/")
    kept: dict[str, object] = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    bench = Bench(args.runs, args.jobs, (int(which), int(of)), kept)
    print(f"{args.runs:,} runs a cell, {args.jobs} processes, {'compiled' if COMPILED else 'not compiled'}", flush=True)
    of_parts = kept.pop("runs", {})
    runs: dict[str, int] = of_parts if isinstance(of_parts, dict) else {}
    for part in args.only or PARTS:
        getattr(bench, part)()
        runs[part] = args.runs
        found = {"runs": runs, **kept, **bench.figures}
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    report(found)


if __name__ == "__main__":
    main()
