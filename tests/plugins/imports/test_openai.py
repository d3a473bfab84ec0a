"""Conversations in OpenAI's messages."""

from __future__ import annotations

import pytest
from tests.support.logs import ASK, END, TOLD, USE, read, replied


def test_weight_0_is_not_imitated(tmp_path):
    bad = {"role": "assistant", "content": "BAD", "weight": 0}
    (body,), report = read(tmp_path, {"messages": [ASK, bad, ASK, {**END, "weight": 1}]})
    assert [m["content"] for m in replied(body)] == ["done"]
    assert report.calls == 1 and len(body["messages"]) == 4


@pytest.mark.parametrize("reward", [[1.0], {"score": 1}, "good", "NaN", 1e300])
def test_a_reward_of_a_wrong_type_is_refused_with_its_field(tmp_path, reward):
    bodies, report = read(tmp_path, {"messages": [ASK, END], "reward": reward}, {"messages": [ASK, END], "reward": 1})
    assert [b["reward"] for b in bodies] == [1.0]
    assert len(report.refused) == 1 and "log.jsonl:1: reward: a number" in report.refused[0]


@pytest.mark.parametrize(("reward", "value"), [("1.0", 1.0), (True, 1.0), (False, 0.0), (" -2e-1 ", -0.2)])
def test_a_reward_that_is_certain_is_converted_and_said(tmp_path, reward, value):
    (body,), report = read(tmp_path, {"messages": [ASK, END], "reward": reward})
    assert body["reward"] == value and report.converted.total() == 1 and not report.clean


def test_dates_are_seconds(tmp_path):
    (body,), report = read(tmp_path, {"messages": [ASK, END], "at": "2026-05-01"})
    assert body["at"] == 1777593600.0 and not report.refused
    assert "log.jsonl:1: at" in read(tmp_path, {"messages": [ASK, END], "at": "soon"})[1].refused[0]


def test_a_field_that_nothing_reads_is_said(tmp_path):
    _, report = read(tmp_path, {"messages": [ASK, END], "mood": "good", "empty": None})
    assert [what for what, _ in report.dropped] == ["field mood"]


def test_functions_of_old_are_tools(tmp_path):
    old = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": ""}}
    (body,), _ = read(
        tmp_path,
        {
            "messages": [ASK, old, {"role": "function", "name": "ls", "content": "x"}, END],
            "functions": [{"name": "ls"}],
        },
    )
    call = body["messages"][1]["tool_calls"][0]
    assert call["function"] == {"name": "ls", "arguments": "{}"}
    assert body["messages"][2]["tool_call_id"] == call["id"]
    assert body["tools"] == [{"type": "function", "function": {"name": "ls"}}]


def test_null_columns_and_marks_of_trainers_are_left_out(tmp_path):
    reply = {**USE, "name": None, "trainable": True, "tool_calls": str(USE["tool_calls"]).replace("'", '"')}
    (body,), report = read(tmp_path, {"messages": [ASK, reply, TOLD, END]})
    assert body["messages"][1] == USE and report.clean


def test_a_row_of_which_nothing_is_imitated_says_so(tmp_path):
    _, report = read(tmp_path, {"messages": [ASK, {**END, "weight": 0}]})
    assert "weight 0" in report.refused[0]
