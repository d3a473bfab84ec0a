from __future__ import annotations

import pytest

from slipstream_judge.trust.stats import concordance, mean, pearson, ranks, slope, spearman


def test_ranks_share_ties():
    assert ranks([10, 20, 20, 5]) == [2, 3.5, 3.5, 1]
    assert ranks([]) == []


def test_correlations():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert spearman([1, 2, 3], [1, 8, 27]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert pearson([1, 1], [1, 2]) is None
    assert spearman([1], [1]) is None


def test_concordance_is_the_auc():
    assert concordance([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == (3.0, 4)
    assert concordance([0.5, 0.5], [0, 1]) == (0.5, 1)
    assert concordance([0.5, 0.5], [1, 1]) == (0.0, 0)


def test_slope_and_mean():
    assert slope([0, 0.5, 1], [0, 0.1, 0.2]) == pytest.approx(0.2)
    assert slope([1, 1], [0, 1]) is None
    assert slope([], []) is None
    assert mean([]) is None and mean([1, 2]) == 1.5
