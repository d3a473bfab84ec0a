from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_judge.compare.ruler import choose_anchors, merge, pack
from slipstream_judge.text.answer import Grade


def part(**scores):
    return {k: Grade(v, f"reason of {k}") for k, v in scores.items()}


def values(merged):
    return {k: v.score for k, v in merged.items()}


def test_pack_fills_the_room_in_order():
    sizes = {"a": 40, "b": 40, "c": 40, "d": 100, "e": 10}
    assert pack("abcde", sizes, 90, 1) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert pack("abcde", sizes, 90, 2) == [["a", "b"], ["c", "d"], ["e"]]
    assert pack("", sizes, 90, 1) == []
    assert pack("abc", sizes, -5, 1) == [["a"], ["b"], ["c"]]


def test_anchors_are_best_and_worst_or_the_middle():
    scores = part(a=0.1, b=0.9, c=0.5)
    small = dict.fromkeys("abc", 10)
    assert choose_anchors(scores, small, 100) == ["a", "b"]
    assert choose_anchors(scores, small, 30) == ["c"]
    assert choose_anchors(part(a=0.1, b=0.9), small, 100) == ["b"]


def test_parts_that_agree_stay_as_they_are():
    merged = values(merge([part(a=0.0, b=1.0, c=0.5), part(a=0.0, b=1.0, d=0.3)], ["a", "b"]))
    assert merged == pytest.approx({"a": 0.0, "b": 1.0, "c": 0.5, "d": 0.3})


def test_a_part_with_another_scale_is_mapped_back():
    truth = {"a": 0.2, "b": 0.8, "c": 0.5, "d": 0.3, "e": 0.7}
    second = {k: Grade(0.5 * truth[k] + 0.3, "") for k in "abde"}
    merged = values(merge([part(a=0.2, b=0.8, c=0.5), second], ["a", "b"]))
    order = sorted(truth, key=truth.__getitem__)
    assert sorted(merged, key=merged.__getitem__) == order
    a, b = merged["a"], merged["b"]
    for k, true in truth.items():
        assert (merged[k] - a) / (b - a) == pytest.approx((true - 0.2) / 0.6)


def test_one_anchor_shifts():
    merged = values(merge([part(a=0.5, b=0.9), part(a=0.7, c=0.7)], ["a"]))
    assert merged["c"] == pytest.approx(merged["a"]) == pytest.approx(0.6)


def test_scores_that_leave_the_range_shrink_all_and_none_become_equal():
    merged = values(merge([part(a=0.9, b=0.95, c=1.0), part(a=0.1, d=0.8, e=1.0)], ["a"]))
    assert 0 <= min(merged.values()) and max(merged.values()) <= 1
    assert merged["e"] > merged["d"]
    assert len({round(v, 9) for v in merged.values()}) == 5


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=4, max_size=12), st.floats(-0.2, 0.2), st.randoms())
def test_merged_scores_are_in_range_and_ordered_within_a_part(truth, shift, rng):
    names = [f"r{i}" for i in range(len(truth))]
    first = {n: Grade(t, "") for n, t in zip(names[:3], truth, strict=False)}
    anchors = choose_anchors(first, dict.fromkeys(names, 1), 100)
    second = {
        n: Grade(min(1, max(0, dict(zip(names, truth, strict=True))[n] + shift)), "") for n in {*anchors, *names[3:]}
    }
    merged = values(merge([first, second], anchors))
    assert set(merged) == set(names)
    assert all(0 <= v <= 1 for v in merged.values())
    rest = [n for n in names[3:]]
    for x in rest:
        for y in rest:
            if second[x].score > second[y].score:
                assert merged[x] >= merged[y]
