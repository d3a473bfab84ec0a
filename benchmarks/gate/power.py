"""How many runs it takes to find a loss, by theory and by simulation: ``python -m benchmarks.gate.power [--runs N]``.
``--before TREE`` plays the same worlds with the gate of another checkout of this repository, beside it.

Theory: after k runs on trial and as many of the control as its share gives, the log of a bet's wealth has grown by k
times its mean growth. A loss is found when the stake (``error_budget``) has grown to 1 / alpha. Theory takes even
shares, one bet, and the control's mean as known. Where some are unrated, good and poor rewards have bets of their own,
and the slower one counts. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gate.hard_worlds import HardWorld, hard, rewarded
from benchmarks.harness import report

from slipstream.shared.error_budget import CONTROL_STAKE
from slipstream_proxy.control.gate.detector import BET_SIZES
from slipstream_proxy.control.gate.rules import TrialSettings


@dataclass(frozen=True)
class Loss:
    success: float
    points: float
    rated: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.success:g} − {self.points:g}, {self.rated:.0%} rated"


LOSSES = [
    *(Loss(0.7, points) for points in (0.7, 0.3, 0.1, 0.05)),
    *(Loss(0.95, points) for points in (0.3, 0.1, 0.05)),
    *(Loss(0.1, points) for points in (0.1, 0.05)),
    *(Loss(0.7, points, rated) for points in (0.3, 0.1) for rated in (0.5, 0.1)),
]
EVEN_SHARE = 0.5
"""Of the version on trial, once it is suspected."""


def expected_runs(loss: Loss) -> float:
    """Runs of both arms, at even shares."""
    before, after = loss.success, max(loss.success - loss.points, 0.0)
    p0 = min(max(before, 0.02), 0.98)
    on_good, on_poor, on_both = 0.0, 0.0, 0.0
    for size in BET_SIZES:
        odds = p0 / (1.0 - p0) * size
        p1 = odds / (1.0 + odds)
        mean = EVEN_SHARE * p1 + (1.0 - EVEN_SHARE) * p0
        good = poor = 0.0
        for share, quality, p in ((EVEN_SHARE, after, p1), (1.0 - EVEN_SHARE, before, p0)):
            good += share * quality * math.log(p / mean)
            poor += share * (1.0 - quality) * math.log((1.0 - p) / (1.0 - mean))
        on_good, on_poor, on_both = max(on_good, good), max(on_poor, poor), max(on_both, good + poor)
    growth = on_both if loss.rated == 1.0 else loss.rated * min(on_good, on_poor)
    needed = math.log(1.0 / (TrialSettings().alpha * CONTROL_STAKE.at_first) * len(BET_SIZES))
    return needed / growth if growth > 0.0 else math.inf


def seen_runs(loss: Loss, runs: int, episodes: int) -> tuple[float, float]:
    """→ (median of live runs on trial until it was taken back, the share of simulations in which it was)."""
    world = HardWorld(
        loss.success,
        (max(loss.success - loss.points, 0.0),),
        rewarded,
        rated=loss.rated,
        every=10 * episodes,
        episodes=episodes,
    )
    found = [run.ended if run.rollbacks else math.inf for run in (hard(world, seed) for seed in range(runs))]
    return statistics.median(found), sum(not math.isinf(n) for n in found) / runs


def seen_before(tree: Path, runs: int, episodes: int) -> dict[str, list[float | None]]:
    """Figures of ``main`` with the gate of another checkout."""
    paths = os.pathsep.join([str(tree / "proxy"), str(tree / "sdk"), str(Path.cwd())])
    command = [sys.executable, "-m", "benchmarks.gate.power", f"--runs={runs}", f"--episodes={episodes}"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, list[float | None]] = json.loads(done.stdout.splitlines()[-1])["power"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="simulations of a row")
    parser.add_argument("--episodes", type=int, default=20_000, help="runs of one at most")
    parser.add_argument("--before", type=Path, help="a checkout whose gate is played too")
    args = parser.parse_args()
    figures: dict[str, list[float | None]] = {}
    before = seen_before(args.before, args.runs, args.episodes) if args.before else {}
    print(f"{'loss':28} theory   seen: median   found{'   before: median   found' if before else ''}")
    for loss in LOSSES:
        least, (median, share) = expected_runs(loss), seen_runs(loss, args.runs, args.episodes)
        _, was, of = before.get(loss.name, [None, None, None])
        beside = f" {was or math.inf:16.0f} {of:7.0%}" if of is not None else ""
        print(f"{loss.name:28} {least:6.0f} {median:14.0f} {share:7.0%}{beside}", flush=True)
        figures[loss.name] = [round(least), None if math.isinf(median) else round(median), share]
    report({"power": figures, "simulations": args.runs, **({"power before": before} if before else {})})


if __name__ == "__main__":
    main()
