"""The gate: does a new adapter stay? Anytime-valid, on within-task differences.

Runs of one task meet both adapters (``arms.py``), so a task's difference (mean reward under the candidate − under the last accepted adapter) is free
of how hard the task is. Rewards of a task are taken as one block when ``block`` of them are there (or the task has gone quiet while the others moved
on), each block once and in order, so that looking again with more data never changes what was seen: the differences are a sequence with conditional
mean 0 when both adapters are alike.

On that sequence two test martingales run, each a mixture over bets λ (hedged betting: Waudby-Smith & Ramdas, "Estimating means of bounded random
variables by betting", JRSS B 86 (2024), sections 3-4; Ville's inequality bounds how often either ever passes 1/α):

    worse:  mean over λ of Π (1 - λ d_i)               under "not worse", E d ≥ 0, it is a supermartingale
    fine:   mean over λ of Π (1 + λ (d_i + m)/(1 + m))  under "worse by the margin m or more", E d ≤ -m, likewise

``worse ≥ 1/α`` rolls back, ``fine ≥ 1/α`` accepts; either may be looked at after every reward. Differences are divided by the largest size of reward
difference seen before (at least 1) and clipped to [-1, 1], which leaves a symmetric null symmetric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BETS = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])
MARGIN = 0.05
"""Of the reward's range: a candidate that is this little worse at most is good enough to be accepted."""
QUIET_BLOCKS = 4

Row = tuple[str, str, float]
Decision = Literal["undecided", "accept", "rollback"]


def differences(rows: Sequence[Row], candidate: str, control: str, block: int) -> list[float]:
    """A number for each closed block of a task in which both adapters ran, in the order in which blocks close. ``rows``: (task, adapter, reward)."""
    open_: dict[str, tuple[list[float], list[float], int]] = {}
    out: list[float] = []

    def close(task: str) -> None:
        ours, theirs, _ = open_.pop(task)
        if ours and theirs:
            out.append(float(np.mean(ours) - np.mean(theirs)))

    quiet = QUIET_BLOCKS * block
    for i, (task, adapter, reward) in enumerate(rows):
        if adapter not in (candidate, control) or not np.isfinite(reward):
            continue
        ours, theirs, _ = open_.get(task, ([], [], i))
        (ours if adapter == candidate else theirs).append(float(reward))
        open_.pop(task, None)
        open_[task] = (ours, theirs, i)  # last touched last
        if len(ours) + len(theirs) >= block:
            close(task)
        while open_ and (first := next(iter(open_)), open_[first][2])[1] < i - quiet:
            close(first)
    return out


def scaled(differences_N: Sequence[float]) -> NDArray[np.float64]:
    """Into [-1, 1], by what was seen before each alone."""
    d = np.asarray(differences_N, dtype=np.float64)
    before = np.maximum.accumulate(np.concatenate([[1.0], np.abs(d)]))[:-1] if d.size else np.ones(0)
    return np.clip(d / before, -1.0, 1.0)


def log_wealth(bounded_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the mixture's wealth after each of ``bounded_N`` (each in [-1, 1]), betting that the mean is above 0."""
    if not bounded_N.size:
        return np.zeros(0)
    paths = np.cumsum(np.log1p(BETS[:, None] * bounded_N[None, :]), axis=1)
    top = paths.max(axis=0)
    return np.asarray(top + np.log(np.exp(paths - top).mean(axis=0)))


def interval(bounded_N: NDArray[np.float64], alpha: float) -> tuple[float, float]:
    """Confidence sequence of the mean at its newest point: all means that neither bet has refused at level α/2, in [-1, 1]."""
    if not bounded_N.size:
        return -1.0, 1.0
    limit = np.log(2 / alpha)
    means = np.linspace(-1.0, 1.0, 201)
    kept = [
        m
        for m in means
        if log_wealth((bounded_N - m) / (1 + abs(m)))[-1] < limit
        and log_wealth((m - bounded_N) / (1 + abs(m)))[-1] < limit
    ]
    return (float(min(kept)), float(max(kept))) if kept else (float(bounded_N.mean()), float(bounded_N.mean()))


@dataclass(slots=True)
class Verdict:
    decision: Decision
    pairs: int
    difference: float | None
    lower: float
    upper: float
    candidate_mean: float | None
    control_mean: float | None
    candidate_episodes: int
    control_episodes: int
    evidence_worse: float
    """Wealth of the bet that it is worse; rolls back at 1/alpha."""
    evidence_fine: float
    alpha: float

    def numbers(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    rows: Sequence[Row],
    candidate: str,
    control: str,
    *,
    alpha: float,
    min_pairs: int,
    block: int,
    max_episodes: int,
    margin: float = MARGIN,
) -> Verdict:
    """What the rewards so far say of the candidate. Both wealths are taken at their maximum: a line once crossed stays crossed."""
    raw = differences(rows, candidate, control, block)
    d = scaled(raw)
    ours = [r for _, a, r in rows if a == candidate and np.isfinite(r)]
    theirs = [r for _, a, r in rows if a == control and np.isfinite(r)]
    worse = float(log_wealth(-d)[min_pairs - 1 :].max(initial=0.0)) if d.size >= min_pairs else 0.0
    fine = (
        float(log_wealth((d + margin) / (1 + margin))[min_pairs - 1 :].max(initial=0.0)) if d.size >= min_pairs else 0.0
    )
    limit = float(np.log(1 / alpha))
    decision: Decision = "undecided"
    if worse >= limit:
        decision = "rollback"
    elif fine >= limit or len(ours) >= max_episodes:
        decision = "accept"
    lower, upper = interval(d, alpha)
    return Verdict(
        decision, len(raw), float(np.mean(raw)) if raw else None, lower, upper, float(np.mean(ours)) if ours else None,
        float(np.mean(theirs)) if theirs else None, len(ours), len(theirs), float(np.exp(min(worse, 700.0))), float(np.exp(min(fine, 700.0))), alpha,
    )  # fmt: skip
