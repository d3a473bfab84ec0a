from __future__ import annotations

import numpy as np
import pytest

from slipstream.shared.intervals import difference, mean_interval, reward_bounds, student, wilson


@pytest.mark.parametrize("n", [3, 11, 40, 400])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.98])
@pytest.mark.parametrize("kind", ["success", "steps", "fine"])
def test_an_interval_holds_the_true_mean_about_as_often_as_it_says(n, share, kind):
    rng = np.random.default_rng(7)
    shape = (2000, n)
    runs = {
        "success": lambda: (rng.random(shape) < share).astype(float),
        "steps": lambda: rng.binomial(4, share, shape) / 4,
        "fine": lambda: rng.beta(8 * share, 8 * (1 - share), shape),
    }[kind]()
    held = 0
    for mean, std in zip(runs.mean(axis=1), runs.std(axis=1, ddof=1), strict=True):
        low, high = mean_interval(float(mean), float(std), n, 0.0, 1.0)
        held += low <= share <= high
    assert held / len(runs) >= 0.9


def test_runs_that_are_all_equal_are_no_certainty():
    low, high = mean_interval(1.0, 0.0, 11, 0.0, 1.0)
    assert high == 1.0 and 0.7 < low < 0.8
    assert mean_interval(-3.0, 0.0, 4, -10.0, 0.0)[0] < -3.5
    assert wilson(0.0, 1)[1] < 1.0 and wilson(1.0, 1)[0] > 0.0


def test_a_difference_is_as_unsure_as_both():
    d, low, high = difference((0.25, *wilson(0.25, 40)), (0.9, *wilson(0.9, 40)))
    assert d == pytest.approx(0.65) and 0.4 < low < d < high < 0.85
    assert difference((0.5, *wilson(0.5, 6)), (0.8, *wilson(0.8, 5)))[1] < 0


def test_of_many_rewards_of_many_values_it_is_students():
    table = {30: 2.045230, 40: 2.022691, 100: 1.984217, 1001: 1.962339}
    for n, errors in table.items():
        assert student(n) == pytest.approx(errors, rel=1e-4)
        low, high = mean_interval(0.5, 0.2, n, 0.0, 1.0)
        assert high - 0.5 == pytest.approx(errors * 0.2 / n**0.5, rel=1e-4) == 0.5 - low


@pytest.mark.parametrize("seen", [(0.2, 0.7), (-1.0, 0.0), (1.0, 5.0)])
def test_it_never_leaves_what_rewards_can_be(seen):
    bounds = reward_bounds(*seen)
    for n in (1, 2, 29, 30, 400):
        for mean in (bounds[0], seen[0], seen[1], bounds[1]):
            low, high = mean_interval(mean, 0.3 * (n > 1), n, *bounds)
            assert bounds[0] <= low <= mean <= high <= bounds[1] and low < high


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-0.3, 1.7)])
def test_it_holds_its_own_mean(bounds):
    """A bar that reaches backwards by a rounding is refused by whoever draws it."""
    lowest, highest = bounds
    for n in range(1, 400):
        for seen in (0, 1, n // 3, n - 1, n):
            mean = lowest + (highest - lowest) * seen / n
            low, high = mean_interval(mean, 0.0, n, lowest, highest)
            assert low <= mean <= high, (n, seen)
            low, high = wilson(seen / n, n)
            assert low <= seen / n <= high, (n, seen)
