"""Rank correlation, concordance, slopes: small, and exact with ties."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import correlation, fmean, linear_regression, pvariance

ROUNDING_VARIANCE = 1e-18
"""A variance below this is rounding alone."""


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for i in order[start : end + 1]:
            found[i] = (start + end) / 2 + 1
        start = end + 1
    return found


def pearson(a: Sequence[float], b: Sequence[float]) -> float | None:
    """None for fewer than two values, or where one of the two does not vary."""
    if len(a) < 2 or pvariance(a) < ROUNDING_VARIANCE or pvariance(b) < ROUNDING_VARIANCE:
        return None
    return correlation(a, b)


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks (Spearman 1904). None where one of them does not vary."""
    return pearson(ranks(a), ranks(b))


def concordance(scores: Sequence[float], truth: Sequence[float]) -> tuple[float, int]:
    """(pairs in which the truly better one has the higher score, an equal score counting half; pairs whose truth
    differs).

    Their quotient is the AUC when truth is 0 or 1, and its usual generalisation else.
    """
    won, pairs = 0.0, 0
    for i, j in combinations(range(len(scores)), 2):
        if truth[i] != truth[j]:
            pairs += 1
            difference = (scores[i] - scores[j]) * (1 if truth[i] > truth[j] else -1)
            won += 1.0 if difference > 0 else 0.5 if difference == 0 else 0.0
    return won, pairs


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The slope of the least-squares line of y over x; None if x does not vary."""
    return linear_regression(x, y).slope if len(x) > 1 and pvariance(x) >= ROUNDING_VARIANCE else None


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
