"""The whole gate in all hard worlds, many at a time: ``python -m benchmarks.gate.all_worlds --seconds 540 --out FILE``.

Line, rules, groups, guards and bets are the shipped ones. Every world's runs come in rounds, so that a run that ends
early has some of each world. ``--out`` is written as it goes; a world's figures are of its first seeds, without a gap:
those that were quick to end would bend them. ``--worlds TEXT`` takes the worlds whose name contains the text. The gate
that is played is the one on ``PYTHONPATH``: that of another checkout, too. It needs numpy and pydantic alone.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.gate.compiled_gate import COMPILED
from benchmarks.gate.hard_worlds import FOUND_WORLDS, NULL_WORLDS, WORSE_WORLDS, HardSimulation, HardWorld
from benchmarks.gate.power import LOSSES
from benchmarks.harness import provenance, quantile, say

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUND_ENDS: Final = (20, 100, 300, 600, 1000, 2000, 4000)
"""Runs of each world after each round."""
RUNS_AT_A_TIME: Final = 10
KEPT_EVERY_S: Final = 10.0
SIX_POINTS: Final = 0.0599

WORLDS: dict[str, HardWorld] = {
    **WORSE_WORLDS,
    **{loss.name: loss.world() for loss in LOSSES},
    **NULL_WORLDS,
    **FOUND_WORLDS,
}


class Played(NamedTuple):
    """Of one run."""

    ended: float
    """Episodes until the first rollback; ``inf``: none."""
    frozen: bool
    accepted: int
    lost: float
    """Most by which the served version was below the base model."""
    rescaled: int
    evidence: float
    """The most against what was served, as a logarithm of its part of the threshold."""


def played(task: tuple[str, int]) -> tuple[str, int, list[Played]]:
    """``task``: a world's name, and the first of ``RUNS_AT_A_TIME`` seeds."""
    name, first = task
    found = []
    for seed in range(first, first + RUNS_AT_A_TIME):
        simulation = HardSimulation(WORLDS[name], seed)
        run = simulation.play()
        ended = run.ended if run.rollbacks else math.inf
        found.append(Played(ended, run.frozen is not None, len(run.accepted), run.worst, run.rescaled, simulation.most))
    return name, first, found


def tasks(names: list[str], runs: int) -> Iterator[tuple[str, int]]:
    before = 0
    for end in ROUND_ENDS:
        for name in names:
            for first in range(before, min(end, runs), RUNS_AT_A_TIME):
                yield name, first
        before = end


def figures(name: str, runs: list[Played]) -> dict[str, float | None]:
    """Of one world. An episode count that is None: more than half, or a tenth, of the runs ended without a rollback."""
    ended = [run.ended for run in runs]
    points = [statistics.median(ended), quantile(ended, 0.9)]
    found: dict[str, float | None] = {
        "runs": len(runs),
        "back": sum(not math.isinf(n) for n in ended) / len(runs),
        "frozen": sum(run.frozen for run in runs) / len(runs),
        "wrong": sum(not math.isinf(run.ended) or run.frozen for run in runs) / len(runs),
        "accepted_first": sum(run.accepted > 0 for run in runs) / len(runs),
        "accepted": statistics.fmean(run.accepted for run in runs),
        "six_points_lost": sum(run.lost > SIX_POINTS for run in runs) / len(runs),
        "found_in_time": sum(not math.isinf(run.ended) and run.lost < SIX_POINTS for run in runs) / len(runs),
        "rescaled": statistics.fmean(run.rescaled for run in runs),
        "evidence_p99": quantile([run.evidence for run in runs], 0.99),
        "episodes": None if math.isinf(points[0]) else points[0],
        "episodes_p90": None if math.isinf(points[1]) else points[1],
    }
    return {key: None if value is None else round(value, 4) for key, value in found.items()}


class Progress:
    """Runs that have ended, and what stands in ``out``."""

    def __init__(self, out: Path | None) -> None:
        self.out, self.began, self.kept_at = out, time.monotonic(), 0.0
        self.made_by = provenance()
        self.runs: dict[str, dict[int, list[Played]]] = {}

    def add(self, name: str, first: int, runs: list[Played]) -> None:
        self.runs.setdefault(name, {})[first] = runs
        if time.monotonic() - self.kept_at > KEPT_EVERY_S:
            self.keep()

    def figures(self) -> dict[str, dict[str, float | None]]:
        found = {}
        for name, chunks in self.runs.items():
            first, whole = 0, list[Played]()
            while first in chunks:
                whole += chunks[first]
                first += RUNS_AT_A_TIME
            if whole:
                found[name] = figures(name, whole)
        return found

    def keep(self) -> None:
        self.kept_at = time.monotonic()
        seconds = round(self.kept_at - self.began, 1)
        say(f"{seconds:6.0f} s: {sum(len(r) for c in self.runs.values() for r in c.values()):,} runs")
        if self.out is not None:
            whole = {"worlds": self.figures(), "seconds": seconds, "compiled": COMPILED, "made_by": self.made_by}
            self.out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--worlds", action="append", metavar="TEXT", help="worlds whose name contains it (default: all)"
    )
    parser.add_argument("--runs", type=int, default=1000, help="of each world, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end then, whatever was reached")
    parser.add_argument("--out", type=Path, help="a JSON file, written as it goes")
    args = parser.parse_args()
    names = [name for name in WORLDS if not args.worlds or any(text in name for text in args.worlds)]
    progress = Progress(args.out)
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        found = pool.imap_unordered(played, tasks(names, args.runs))
        while (left := args.seconds - (time.monotonic() - progress.began)) > 0.0:
            try:
                progress.add(*found.next(min(left, 3600.0)))
            except StopIteration:
                break
            except multiprocessing.TimeoutError:
                continue
    progress.keep()
    print(f"{'world':56} runs   back frozen  first  6 pts  in time  episodes")
    for name, f in progress.figures().items():
        shares = " ".join(f"{f[key]:6.1%}" for key in ("back", "frozen", "accepted_first", "six_points_lost"))
        print(f"{name:56} {f['runs']:4.0f} {shares}  {f['found_in_time']:6.1%} {f['episodes'] or math.inf:9,.0f}")


if __name__ == "__main__":
    main()
