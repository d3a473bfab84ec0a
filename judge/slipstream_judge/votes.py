"""Votes: each sees the runs in another order and under other ids. Their mean counts, and their spread is kept."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from slipstream_judge.prompt import Grade

EXCHANGE = 6
"""Runs from which on neighbours are exchanged; fewer runs reach every place without."""


@dataclass(slots=True)
class VoteTally:
    """One run's votes: ``spread`` is their standard deviation, ``reason`` that of the vote nearest to the mean."""

    value: float
    spread: float
    values: list[float]
    reason: str


def rng_of(digests: Sequence[str], vote: int) -> random.Random:
    """The same runs and vote are shuffled alike wherever they are judged. Else the cache would hide a chance."""
    seed = hashlib.sha256(f"{vote}:{','.join(sorted(digests))}".encode()).digest()
    return random.Random(int.from_bytes(seed[:8], "big"))


def orders(digests: Sequence[str], votes: Sequence[int]) -> list[list[str]]:
    """The order that each vote shows.

    Four votes make a set: an order, the same half a turn on, and both backwards with neighbours exchanged. Backwards
    cancels a bias that grows from place to place. The turn and the exchange bring other runs to the ends, which
    judges often favour. The next set begins a quarter of a turn and one place further on.
    """
    base = sorted(digests)
    rng_of(digests, 0).shuffle(base)
    return [_order(base, vote) for vote in votes]


def _order(base: Sequence[str], vote: int) -> list[str]:
    runs = len(base)
    turn = (vote // 4 * (runs // 4 + 1) + (runs // 2 if vote % 2 else 0)) % max(1, runs)
    order = [*base[turn:], *base[:turn]]
    if vote % 4 < 2:
        return order
    order.reverse()
    return _neighbours_exchanged(order) if runs >= EXCHANGE else order


def _neighbours_exchanged(order: Sequence[str]) -> list[str]:
    """In pairs from both ends to the middle, which stays."""
    found, last = list(order), len(order) - 1
    for i in range(0, len(order) // 2 - 1, 2):
        found[i], found[i + 1] = found[i + 1], found[i]
        if last - i - 1 > i + 1:
            found[last - i], found[last - i - 1] = found[last - i - 1], found[last - i]
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
