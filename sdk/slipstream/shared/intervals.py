"""The 95 % intervals that stand beside means, shares and differences, the same ones on every screen.

A mean between two bounds spreads at most as a share does. So Wilson's interval holds where runs are few, all equal,
near a bound, or all at the bounds, as 0 and 1 are. Of many others it is Student's t-interval of the spread that they
show. Neither leaves the bounds. A difference has Newcombe's interval, which is made of the two means' own.
"""

from __future__ import annotations

import math

Z = 1.959964
"""Standard errors on each side of a mean that hold the true one in 95 of 100 cases."""
MIN_SPREAD_RUNS = 30
"""Runs below which a spread says too little of itself."""
NEAR_BOUND_RUNS = 5
"""Runs' worth of reward from a bound below which the mean's errors lean to one side."""


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's interval of a share, ``n`` at least 1: never outside 0 to 1, and never a point."""
    z2 = Z * Z
    middle, half = share + z2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low, high = (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)
    # rounded, the bound at a share of 1 may come out below 1, and a bar may reach backwards
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def student(n: int) -> float:
    """Standard errors on each side of a mean of ``n`` values, at least ``MIN_SPREAD_RUNS``, by Student's t."""
    v = n - 1
    return Z + (Z**3 + Z) / (4 * v) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * v * v)


def reward_bounds(lowest: float, highest: float) -> tuple[float, float]:
    """Between which rewards lie. ``lowest``, ``highest``: of those that were seen. Most rewards are from 0 to 1."""
    return min(0.0, lowest), max(1.0, highest)


def mean_interval(mean: float, std: float, n: int, lowest: float, highest: float) -> tuple[float, float]:
    """Of a mean of ``n`` values between ``lowest`` and ``highest`` that spread by ``std``."""
    span = highest - lowest
    if span <= 0:
        return mean, mean
    share = min(max((mean - lowest) / span, 0.0), 1.0)
    near = n * min(share, 1 - share) < NEAR_BOUND_RUNS
    if n < MIN_SPREAD_RUNS or near or std <= 0 or std >= 0.95 * span * math.sqrt(share * (1 - share)):
        low, high = wilson(share, n)
        return min(mean, lowest + span * low), max(mean, lowest + span * high)
    half = student(n) * std / math.sqrt(n)
    return max(lowest, mean - half), min(highest, mean + half)


def difference(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float, float]:
    """``b`` less ``a``, each a mean with its interval → the difference with its own (Newcombe's)."""
    (mean, low, high), (after, least, most) = a, b
    d = after - mean
    return d, d - math.hypot(after - least, high - mean), d + math.hypot(most - after, mean - low)


def told(mean: float, low: float, high: float) -> str:
    """As everywhere: ``0.89 (0.87 to 0.91)``, in brackets the 95 % interval."""
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"
