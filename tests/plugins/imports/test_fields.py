"""What rows say of an episode beside its messages."""

from __future__ import annotations

import pytest
from tests.support.logs import ASK, END, read

from slipstream_chat.report import Place, Refused, Report
from slipstream_imports.fields import described, labels_in, names_in, rewards_in


def place():
    return Place(Report(), "f:1")


@pytest.mark.parametrize(
    ("row", "task"), [({"task": "a"}, "a"), ({"scenario_id": "b"}, "b"), ({"metadata": {"task": "c"}}, "c"), ({"task": {"n": 1}}, '{"n": 1}')]
)  # fmt: skip
def test_where_a_task_stands(row, task):
    assert described(row, place()).task == task


def test_splits_of_other_names():
    at = place()
    assert described({"split": "test"}, at).split == "eval" and at.report.converted.total() == 1
    with pytest.raises(Refused, match="^split: "):
        described({"split": "x"}, place())


def test_names_and_labels_in_their_spellings():
    assert names_in('{"a": 1}', "m") == names_in([("a", 1)], "m") == {"a": 1}
    assert labels_in(["a", "b"], "tags") == {"a": "yes", "b": "yes"}
    for bad in ("{", [1], 3):
        with pytest.raises(Refused, match="^m: "):
            names_in(bad, "m")


def test_rewards_by_name():
    at = place()
    assert rewards_in({"rewards": {"reward": 1, "x": "0.5"}, "metrics": {"y": "no"}}, at) == (1.0, {"x": 0.5})
    assert [what for what, _ in at.report.dropped] == ["metrics.y"]


def test_no_reward_is_lost_silently(tmp_path):
    talk = {"messages": [ASK, END]}
    assert read(tmp_path, {**talk, "rewards": 0.5})[0][0]["reward"] == 0.5
    for wrong in ({"rewards": [0.5]}, {"reward": 10**400}):
        bodies, report = read(tmp_path, {**talk, **wrong})
        assert not bodies and f"{next(iter(wrong))}: " in report.refused[0]
    _, report = read(tmp_path, {"prompt": "q", "completion": "a", "label": "good"})
    assert ("label", "a number is needed, this is text ('good')") in report.dropped


def test_a_weight_in_a_text_counts(tmp_path):
    (body,), report = read(tmp_path, {"messages": [ASK, {**END, "weight": "0"}, ASK, {**END, "weight": "1"}]})
    assert [told["message"] for told in body["replies"]] == [3] and report.converted.total() == 2
