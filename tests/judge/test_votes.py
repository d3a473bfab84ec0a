from __future__ import annotations

import random

from slipstream_judge.prompt import Grade
from slipstream_judge.votes import labels, orders, tally

RUNS = [f"d{i}" for i in range(8)]


def test_each_vote_has_its_order_and_the_odd_ones_are_backwards():
    found = orders(RUNS, range(6))
    assert all(sorted(o) == RUNS for o in found)
    assert found[1] == found[0][::-1] and found[3] == found[2][::-1]
    assert len({tuple(o) for o in found}) == 6
    assert found[0] != RUNS


def test_the_same_runs_are_shuffled_alike_wherever_they_come_from():
    assert orders(RUNS, [3]) == orders(RUNS[::-1], [3]) == [orders(RUNS, range(4))[3]]


def test_labels_say_nothing_about_the_place():
    firsts = {labels(RUNS, random.Random(seed))[0] for seed in range(60)}
    assert len(firsts) == 8
    assert sorted(labels(RUNS, random.Random(0))) == sorted(f"e{i}" for i in range(1, 9))


def test_tally_is_mean_spread_and_the_nearest_reason():
    votes = [{"a": Grade(s, f"said {s}"), "b": Grade(0.5, "same")} for s in (0.0, 0.4, 0.8)]
    found = tally(votes)
    assert abs(found["a"].value - 0.4) < 1e-12 and abs(found["a"].spread - 0.32659863) < 1e-6
    assert found["a"].values == [0.0, 0.4, 0.8] and found["a"].reason == "said 0.4"
    assert (found["b"].value, found["b"].spread) == (0.5, 0.0)
