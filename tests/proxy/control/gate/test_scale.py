from __future__ import annotations

import json
import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.control.gate.scale import WINDOW_REWARDS, RewardScale

REWARDS = st.lists(st.floats(-1e12, 1e12), max_size=120)


def filled(rewards: list[float], scale: RewardScale | None = None) -> RewardScale:
    scale = scale or RewardScale()
    for r in rewards:
        scale.see(r)
    return scale


@settings(max_examples=100, deadline=None, derandomize=True)
@given(REWARDS, st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=20))
def test_units_are_from_0_to_1_finite_and_keep_the_order(seen, asked):
    scale = filled(seen)
    units = [scale.unit(r) for r in sorted(asked)]
    assert all(0.0 <= u <= 1.0 and math.isfinite(u) for u in units)
    assert units == sorted(units)


def test_one_enormous_reward_does_not_stretch_the_scale():
    scale = filled([0.0, 1.0] * 20 + [1e6])
    assert (scale.low, scale.high) == (0.0, 1.0)
    assert scale.unit(1e6) == 1.0


def test_any_unit_of_measure_gives_the_same_numbers():
    coin = random.Random(1)
    rewards = [coin.gauss(0, 1) for _ in range(300)]
    one, large = filled(rewards), filled([r * 1e6 for r in rewards])
    assert all(math.isclose(one.unit(r), large.unit(r * 1e6), abs_tol=1e-9) for r in rewards)


def test_rewards_that_are_nearly_all_equal_still_have_an_order():
    scale = filled([1.0] * 200)
    assert [scale.unit(r) for r in (0.0, 1.0, 2.0)] == [0.0, 0.5, 1.0]


def test_a_declared_range_never_moves():
    scale = filled([5.0, -100.0, 3.0] * 50, RewardScale(0.0, 10.0))
    assert [scale.unit(r) for r in (-100.0, 5.0, 11.0)] == [0.0, 0.5, 1.0]


def test_only_the_newest_rewards_count_and_are_kept_over_a_restart():
    scale = filled([100.0] * 300 + [coin / 10 for coin in range(10)] * (WINDOW_REWARDS // 10))
    assert scale.high < 1.0
    again = RewardScale()
    again.load(json.loads(json.dumps(scale.dump())))
    assert again.dump() == scale.dump()
    assert [again.see(0.3), again.low, again.high] == [scale.see(0.3), scale.low, scale.high]
