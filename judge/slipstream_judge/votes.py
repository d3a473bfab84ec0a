"""Votes: each sees the runs in another order and under other ids; what counts is their mean, and their spread is kept."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from slipstream_judge.prompt import Grade


@dataclass(slots=True)
class VoteTally:
    """One run's votes: ``spread`` is their standard deviation, ``reason`` that of the vote nearest to the mean."""

    value: float
    spread: float
    values: list[float]
    reason: str


def rng_of(digests: Sequence[str], vote: int) -> random.Random:
    """The same runs and the same vote are shuffled alike wherever they are judged: else the cache would hide a chance."""
    seed = hashlib.sha256(f"{vote}:{','.join(sorted(digests))}".encode()).digest()
    return random.Random(int.from_bytes(seed[:8], "big"))


def orders(digests: Sequence[str], votes: Sequence[int]) -> list[list[str]]:
    """The order that each vote shows. Vote 2k+1 is vote 2k backwards, so that an even number of votes cancels a bias that is linear in place."""
    found = []
    for vote in votes:
        order = sorted(digests)
        rng_of(digests, vote // 2).shuffle(order)
        found.append(order[::-1] if vote % 2 else order)
    return found


def labels(order: Sequence[str], rng: random.Random) -> list[str]:
    """An id for each run; which run gets which says nothing about its place."""
    ids = [f"e{i}" for i in range(1, len(order) + 1)]
    rng.shuffle(ids)
    return ids


def tally(votes: Sequence[Mapping[str, Grade]]) -> dict[str, VoteTally]:
    """All votes have the same runs."""
    found = {}
    for run in votes[0]:
        values = [v[run].score for v in votes]
        mean = fmean(values)
        nearest = min(votes, key=lambda v, run=run, mean=mean: abs(v[run].score - mean))  # type: ignore[misc]
        found[run] = VoteTally(mean, pstdev(values), values, nearest[run].reason)
    return found
