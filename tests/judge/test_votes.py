from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest

from slipstream_judge.compare.ruler import labels, orders, tally
from slipstream_judge.text.answer import Grade

RUNS = [f"d{i}" for i in range(8)]


def test_votes_are_turned_and_reversed():
    found = orders(RUNS, range(8))
    assert all(sorted(o) == RUNS for o in found)
    assert len({tuple(o) for o in found}) == 8
    assert found[1] == found[0][4:] + found[0][:4]
    first = found[0][::-1]
    assert found[2] == [first[i] for i in (1, 0, 3, 2, 5, 4, 7, 6)]
    assert orders(["a"], range(3)) == [["a"]] * 3 and orders(["a", "b"], [0, 1])[0] != orders(["a", "b"], [0, 1])[1]


@pytest.mark.parametrize("runs", range(2, 13))
def test_every_vote_shows_every_run_once(runs):
    names = [f"d{i}" for i in range(runs)]
    assert all(sorted(o) == sorted(names) for o in orders(names, range(32)))


def test_eight_votes_bring_each_of_eight_runs_to_every_place():
    places = Counter((run, place) for order in orders(RUNS, range(8)) for place, run in enumerate(order))
    assert set(places.values()) == {1}


BIASES = {
    "grows": [place / 7 for place in range(8)],
    "first": [1.0, *[0.0] * 7],
    "last": [*[0.0] * 7, 1.0],
    "first and last": [1.0, *[0.0] * 6, 1.0],
    "ends more than middle": [(place / 3.5 - 1) ** 2 for place in range(8)],
}


def shuffled(rng, votes):
    return [rng.sample(RUNS, 8) for _ in range(votes)]


def reversed_pairs(rng, votes):
    firsts = [rng.sample(RUNS, 8) for _ in range(votes // 2)]
    return [order for first in firsts for order in (first, first[::-1])]


def ours(rng, votes):
    names = rng.sample(RUNS, 8)
    return [[names[int(d[1:])] for d in order] for order in orders(RUNS, range(votes))]


def right_pairs(scheme, bias, votes, groups=400):
    """The share of pairs in the right order, when a place adds up to 0.6 to a score in 0 … 1."""
    rng = random.Random(7)
    right = pairs = 0
    for _ in range(groups):
        truth = {run: rng.random() for run in RUNS}
        mean = dict.fromkeys(RUNS, 0.0)
        for order in scheme(rng, votes):
            for run, more in zip(order, bias, strict=True):
                mean[run] += truth[run] + 0.6 * more + rng.gauss(0, 0.1)
        for a, b in combinations(RUNS, 2):
            pairs += 1
            right += (mean[a] - mean[b]) * (truth[a] - truth[b]) > 0
    return right / pairs


def test_turns_and_reversals_beat_random_orders_and_reversed_pairs():
    found = {
        scheme.__name__: {name: right_pairs(scheme, bias, 4) for name, bias in BIASES.items()}
        for scheme in (shuffled, reversed_pairs, ours)
    }
    assert all(found["ours"][name] > found["shuffled"][name] for name in BIASES), found
    assert all(found["ours"][name] > found["reversed_pairs"][name] for name in BIASES if name != "grows"), found
    assert found["ours"]["grows"] > found["reversed_pairs"]["grows"] - 0.03, found
    assert (
        found["ours"]["first and last"] > max(found[s]["first and last"] for s in ("shuffled", "reversed_pairs")) + 0.05
    )


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
