"""How the newest rewards are spread, and whether they follow anything but quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream_proxy.store.tables.driver import IN, Tx
from slipstream_proxy.store.values import SAME_REWARD_DISTANCE

Floats = NDArray[np.float64]
SHAPED_RUNS = 256
"""Newest rewarded runs that say how rewards are spread."""
MIN_DIFFERENT_VALUES = 5
"""Values of reward and of length that must occur before one is said to follow the other."""
MIN_PAIRS = 64
"""Pairs of runs that differ in both, from which on their order says something."""


class RewardShape(NamedTuple):
    """Training rewards of the newest rewarded runs, at most ``SHAPED_RUNS``."""

    n: int
    low: float
    high: float
    at_best: int
    """Runs with the highest reward that their task ever had."""
    length: float | None
    """Correlation of reward and sampled tokens, or of their order, over all runs or within their groups, whichever is
    the strongest. None: one of them does not vary, or hardly.
    """
    same: int = 1
    """Newest runs one after the other with one reward."""
    newest: float = 0.0
    """That reward."""
    ranked: bool = False
    """``length`` is a correlation of ranks."""


def reward_shape(tx: Tx, best: float, worst: float) -> RewardShape | None:
    runs_of = "FROM t_episodes WHERE split = 'train' AND state = 'done' AND reward IS NOT NULL"
    # when the oldest of them ended is found first: to sort whole rows of all runs takes twice as long
    newest = tx.all(f"""SELECT reward, completion_tokens, coalesce(grp, eid), task {runs_of} AND ended >=
        (SELECT min(ended) FROM (SELECT ended {runs_of} ORDER BY ended DESC LIMIT {SHAPED_RUNS}) q)
        ORDER BY ended DESC, eid LIMIT {SHAPED_RUNS}""")
    if not newest:
        return None
    sql = f"""SELECT task, max(reward) FROM t_episodes WHERE split = 'train' AND state <> 'deleted' AND task {IN}
        GROUP BY task HAVING count(reward) >= {MIN_DIFFERENT_VALUES}"""
    tops: dict[str, float] = dict(tx.all(sql, ([*{task for *_, task in newest if task is not None}],)))
    runs = [(float(reward), float(tokens), str(grp)) for reward, tokens, grp, _ in newest]
    at_best = sum(r >= tops.get(row[3], best) and r > worst for (r, _, _), row in zip(runs, newest, strict=True))
    rewards, lengths, groups = map(np.asarray, zip(*runs, strict=True))
    _, own = np.unique(groups, return_inverse=True)
    known: list[float] = []
    ranked: list[float] = []
    if len(np.unique(lengths)) >= MIN_DIFFERENT_VALUES:
        above, longer = _off_mean(rewards, own), _off_mean(lengths, own)
        above[np.abs(above) < SAME_REWARD_DISTANCE] = 0.0
        if len(np.unique(rewards)) >= MIN_DIFFERENT_VALUES:
            known = [*_correlation(rewards, lengths), *_correlation(above, longer)]
        ranked = _orders(runs)
    same = next((i for i, run in enumerate(runs) if abs(run[0] - runs[0][0]) >= SAME_REWARD_DISTANCE), len(runs))
    low, high = float(rewards.min()), float(rewards.max())
    length = max([*known, *ranked], key=abs, default=None)
    by_rank = length is not None and length not in known
    return RewardShape(len(runs), low, high, at_best, length, same, runs[0][0], ranked=by_rank)


def _off_mean(values: Floats, groups: NDArray[np.intp]) -> Floats:
    """How far each value is from the mean of its group."""
    return values - (np.bincount(groups, values) / np.bincount(groups))[groups]


def _correlation(a: Floats, b: Floats) -> list[float]:
    """Pearson's; nothing where one of the two does not vary."""
    if np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return []
    return [float(np.corrcoef(a, b)[0, 1])]


def _orders(runs: Sequence[tuple[float, float, str]]) -> list[float]:
    """Somers' D over all pairs of runs whose rewards differ, and over pairs of one group: 1 where the longer run always
    has more, -1 where it always has less. Two runs of one length count as 0: their rewards differ for another reason.
    """
    if len(runs) - max(Counter(reward for reward, _, _ in runs).values()) < MIN_DIFFERENT_VALUES:
        return []
    pairs, same_group = Counter[int](), Counter[int]()
    for (reward, tokens, grp), (other, others, place) in combinations(runs, 2):
        if abs(reward - other) >= SAME_REWARD_DISTANCE:
            order = 0 if tokens == others else 1 if (tokens > others) is (reward > other) else -1
            pairs[order] += 1
            same_group[order] += grp == place
    return [(p[1] - p[-1]) / p.total() for p in (pairs, same_group) if p.total() >= MIN_PAIRS]
