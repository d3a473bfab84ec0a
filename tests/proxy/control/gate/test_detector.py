from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.control.gate.detector import BET_SIZES, BettingDetector

UNIT = st.floats(0, 1)
SHARE = st.floats(0.05, 0.95)


def new(sign: int = 1) -> BettingDetector:
    return BettingDetector(sign, 0.25, 0.0001)


def fed(detector: BettingDetector, n: int, tested: float, reference: float, share: float = 0.5, seed: int = 0):
    coin = random.Random(seed)
    for _ in range(n):
        on = coin.random() < share
        detector.see(float(coin.random() < (tested if on else reference)), reference, on, share)
    return detector


@settings(max_examples=200, deadline=None, derandomize=True)
@given(x=UNIT, expected=UNIT, share=SHARE, sign=st.sampled_from([1, -1]))
def test_for_every_reward_the_mean_over_the_arms_coin_is_one(x, expected, share, sign):
    """So no distribution of rewards, and no baseline, makes money where the arms are alike."""
    tested, reference = new(sign), new(sign)
    before = tested.wealth
    tested.see(x, expected, True, share)
    reference.see(x, expected, False, share)
    for i in range(len(BET_SIZES)):
        mean = share * tested.wealths[i] + (1 - share) * reference.wealths[i]
        assert math.isclose(mean, before * [2 / 7, 2 / 7, 1 / 7, 1 / 7, 1 / 7][i], rel_tol=1e-9)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(a=UNIT, b=UNIT, expected=UNIT, share=SHARE)
def test_a_better_tested_arm_makes_no_money_in_the_mean(a, b, expected, share):
    """Two fixed rewards, the tested arm's at least as high as the reference's: a supermartingale."""
    high, low = max(a, b), min(a, b)
    tested, reference = new(), new()
    before = tested.wealth
    tested.see(high, expected, True, share)
    reference.see(low, expected, False, share)
    assert share * tested.wealth + (1 - share) * reference.wealth <= before * (1 + 1e-9)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(a=UNIT, b=UNIT, expected=UNIT, share=SHARE, margin=st.sampled_from([0.05, 0.1, 0.3]))
def test_a_loss_of_no_more_than_the_margin_makes_no_money_in_the_mean(a, b, expected, share, margin):
    lost = min(a * margin, b)
    tested, reference = (BettingDetector(1, 0.25, 0.0, shifts=False, margin=margin) for _ in range(2))
    before = tested.wealth
    tested.see(b - lost, expected, True, share)
    reference.see(b, expected, False, share)
    assert share * tested.wealth + (1 - share) * reference.wealth <= before * (1 + 1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(UNIT, UNIT, st.booleans(), SHARE), max_size=60), st.sampled_from([1, -1]))
def test_wealth_is_finite_and_grows_with_the_refuted_difference(rows, sign):
    detector = new(sign)
    for x, expected, tested, share in rows:
        detector.see(x, expected, tested, share)
    count = len(BET_SIZES)
    sums = [sum(detector.wealths[k * count : (k + 1) * count]) for k in range(len(detector.shifts))]
    assert all(math.isfinite(s) and s >= 0 for s in sums)
    ordered = [s for _, s in sorted(zip(detector.shifts, sums, strict=True))]
    assert all(a <= b * (1 + 1e-6) + 1e-12 for a, b in zip(ordered, ordered[1:], strict=False))


def test_the_limit_is_below_zero_exactly_when_the_verdict_is():
    for seed in range(40):
        detector = fed(new(), 120, 0.45, 0.7, seed=seed)
        assert (detector.wealth >= 100) == (detector.limit(0.01) <= 0), detector.wealth


def test_the_interval_holds_the_difference_and_shrinks():
    widths = []
    for n in (100, 1000, 5000):
        worse, better = fed(new(1), n, 0.6, 0.7), fed(new(-1), n, 0.6, 0.7)
        lower, upper = better.limit(0.01), worse.limit(0.01)
        assert lower <= -0.1 <= upper
        widths.append(upper - lower)
    assert widths[0] > widths[1] > widths[2] and widths[2] < 0.25


def test_evidence_begins_again_at_a_start_and_credit_is_earned():
    detector = fed(new(), 3000, 0.9, 0.7)  # a better one uses up the first wealth
    assert detector.wealth < 0.05 and detector.credit == pytest.approx(0.25)
    detector.start()
    assert detector.wealth >= 0.25 and detector.credit == 0.0
    fed(detector, 100, 0.0, 0.7)
    assert detector.wealth > 100


def test_it_is_kept_over_a_restart_and_foreign_evidence_is_refused():
    detector = fed(new(), 50, 0.5, 0.7)
    again = new()
    again.load(json.loads(json.dumps(detector.dump())))
    assert again.dump() == detector.dump() and again.wealth == pytest.approx(detector.wealth)
    for foreign in (None, [], [1, 2], [*detector.dump()[:-1], "x"]):
        with pytest.raises(TypeError):
            new().load(foreign)  # type: ignore[arg-type]
