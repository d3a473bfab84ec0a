"""The whole gate in all hard worlds, many at a time: ``python -m benchmarks.gate.all_worlds --seconds 540 --out FILE``.

Line, rules, groups, guards and bets are the shipped ones. Some runs of each world come first. Then worlds in which no
version is worse get ``--runs``, beginning with those that came nearest to a wrong verdict (``benchmarks/results``). Then
the others get ``--others``, slides and rare successes first. ``--out`` is written as it goes; a world's figures are of
its first seeds, without a gap: those that were quick to end would bend them. ``--kept`` keeps each run: a later call goes
on from there. ``--worlds TEXT`` takes the worlds whose name contains the text. The gate that is played is the one on
``PYTHONPATH``: that of another checkout, too. It needs nothing but Python.
"""

from __future__ import annotations

import argparse
import contextlib
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
from benchmarks.harness import ROOT, provenance, quantile, say

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_RUNS: Final = 20
"""Of each world, before any gets more."""
EARLIER: Final = ROOT / "benchmarks" / "results" / "gate_worlds.json"
RUNS_AT_A_TIME: Final = 10
KEPT_EVERY_S: Final = 10.0
SIX_POINTS: Final = 0.0599

EQUAL_WORLDS: dict[str, HardWorld] = {**NULL_WORLDS, **FOUND_WORLDS}
WORLDS: dict[str, HardWorld] = {
    **EQUAL_WORLDS,
    **WORSE_WORLDS,
    **{loss.name: loss.world() for loss in LOSSES},
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


def in_turn(names: list[str]) -> list[str]:
    """Equal worlds first, those nearest to a wrong verdict before others."""
    known = json.loads(EARLIER.read_text())["worlds"] if EARLIER.is_file() else {}

    def key(name: str) -> tuple[int, float, float]:
        seen = known.get(name)
        if name not in EQUAL_WORLDS:
            return 1 + (not name.startswith(("slide", "2 %"))), 0.0, 0.0
        return (0, -seen["wrong"], -seen["evidence_p99"]) if seen else (0, -1.0, 0.0)

    return sorted(names, key=key)


def tasks(names: list[str], runs: int, others: int, done: set[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """``done``: those that are left out."""
    for begin, end in ((0, FIRST_RUNS), (FIRST_RUNS, math.inf)):
        for name in names:
            last = min(runs if name in EQUAL_WORLDS else others, end)
            for first in range(begin, int(last), RUNS_AT_A_TIME):
                if (name, first) not in done:
                    yield name, first


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
    """Runs that have ended, and what stands in ``out``. ``kept``: a file with one JSON array a line, (world, first seed,
    its runs).
    """

    def __init__(self, out: Path | None, kept: Path | None) -> None:
        self.out, self.kept, self.began, self.kept_at = out, kept, time.monotonic(), 0.0
        self.made_by = provenance()
        self.runs: dict[str, dict[int, list[Played]]] = {}
        for line in kept.read_text().splitlines() if kept is not None and kept.is_file() else ():
            with contextlib.suppress(ValueError):  # a line that was being written when the last call ended
                name, first, runs = json.loads(line)
                self.runs.setdefault(name, {})[first] = [Played(*run) for run in runs]

    def done(self) -> set[tuple[str, int]]:
        return {(name, first) for name, chunks in self.runs.items() for first in chunks}

    def add(self, name: str, first: int, runs: list[Played]) -> None:
        self.runs.setdefault(name, {})[first] = runs
        if self.kept is not None:
            with self.kept.open("a") as file:
                file.write("\n" + json.dumps([name, first, runs]))  # after whatever a call that was killed left
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
    parser.add_argument("--runs", type=int, default=1000, help="of each world in which all versions are equal, at most")
    parser.add_argument("--others", type=int, default=200, help="of each other world, at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end then, whatever was reached")
    parser.add_argument("--out", type=Path, help="a JSON file, written as it goes")
    parser.add_argument("--kept", type=Path, help="a file with all runs; a later call goes on from there")
    args = parser.parse_args()
    names = in_turn([name for name in WORLDS if not args.worlds or any(text in name for text in args.worlds)])
    progress = Progress(args.out, args.kept)
    left_over = tasks(names, args.runs, args.others, progress.done())
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        found = pool.imap_unordered(played, left_over)
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
