"""How many runs it takes to find a loss, by theory and by simulation: ``python -m benchmarks.gate.power [--seen FILE]``.
``benchmarks.gate.all_worlds`` keeps such files, of this checkout's gate and of another's.

Theory: after k runs on trial and as many of the control as its share gives, the log of a bet's wealth has grown by k
times its mean growth. A loss is found when the stake (``error_budget``) has grown to 1 / alpha. Theory takes even
shares, one bet, and the control's mean as known. Where some are unrated, good and poor rewards have bets of their own,
and the slower one counts. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gate.hard_worlds import HardWorld, rewarded

from slipstream.shared.error_budget import BEST_STAKE, CONTROL_STAKE
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

    def world(self) -> HardWorld:
        """One version that is worse by so much, for 20,000 runs."""
        later = max(self.success - self.points, 0.0)
        return HardWorld(self.success, (later,), rewarded, rated=self.rated, every=200_000, episodes=20_000)


LOSSES = [
    *(Loss(0.7, points) for points in (0.7, 0.3, 0.1, 0.05)),
    *(Loss(0.95, points) for points in (0.3, 0.1, 0.05)),
    *(Loss(0.1, points) for points in (0.1, 0.05)),
    *(Loss(0.7, points, rated) for points in (0.3, 0.1) for rated in (0.5, 0.1)),
]
EVEN_SHARE = 0.5
"""Of the version on trial, once it is suspected."""


def growth(before: float, after: float) -> float:
    """The most that one of the bets wins with each run, in the mean, at even shares: of what has these means."""
    most = 0.0
    for size in BET_SIZES:
        odds = before / (1.0 - before) * size
        p1 = odds / (1.0 + odds)
        mean = EVEN_SHARE * p1 + (1.0 - EVEN_SHARE) * before
        won = 0.0
        for share, quality, p in ((EVEN_SHARE, after, p1), (1.0 - EVEN_SHARE, before, before)):
            won += share * (quality * math.log(p / mean) + (1.0 - quality) * math.log((1.0 - p) / (1.0 - mean)))
        most = max(most, won)
    return most


def expected_runs(loss: Loss) -> float:
    """Runs of both arms, at even shares."""
    before, after = min(max(loss.success, 0.02), 0.98), max(loss.success - loss.points, 0.0)
    slowest = growth(before, after)
    if loss.rated < 1.0:  # what is no failure that was rated, and what is a success that was
        of_poor = [1.0 - loss.rated * (1.0 - quality) for quality in (before, after)]
        slowest = min(growth(of_poor[0], of_poor[1]), growth(loss.rated * before, loss.rated * after))
    stakes = CONTROL_STAKE.at_first + BEST_STAKE.at_first  # at first, the best version is the control
    needed = math.log(1.0 / (TrialSettings().alpha * stakes) * len(BET_SIZES))
    return needed / slowest if slowest > 0.0 else math.inf


def read(path: Path | None) -> dict[str, dict[str, float | None]]:
    """Of what ``all_worlds`` kept. None: nothing."""
    if path is None:
        return {}
    found: dict[str, dict[str, float | None]] = json.loads(path.read_text())["worlds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seen", type=Path, help="what all_worlds kept of this gate")
    parser.add_argument("--before", type=Path, help="the same of another one")
    args = parser.parse_args()
    seen, before = read(args.seen), read(args.before)
    print(f"{'loss':28} theory   seen: median  found   before: median  found")
    for loss in LOSSES:
        row = f"{loss.name:28} {expected_runs(loss):6.0f}"
        for of in (seen, before):
            found = of.get(loss.name)
            row += f" {found['episodes'] or math.inf:14,.0f} {found['back'] or 0.0:6.0%}" if found else " " * 22
        print(row)


if __name__ == "__main__":
    main()
