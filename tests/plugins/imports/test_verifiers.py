"""Rows with a prompt and a completion."""

from __future__ import annotations

import json

from tests.support.logs import ASK, END, TOLD, USE, read, replied

ROW = {"prompt": [ASK], "completion": [END], "reward": 1.0}


def test_tool_calls_as_json_texts(tmp_path):
    said = {**USE, "tool_calls": [json.dumps(USE["tool_calls"][0])]}
    (body,), _ = read(tmp_path, {**ROW, "completion": [said, TOLD, END], "task": "t", "example_id": 4})
    assert replied(body)[0]["tool_calls"] == USE["tool_calls"] and body["task"] == "t-4"


def test_kto_s_labels_and_texts(tmp_path):
    bodies, _ = read(tmp_path, *({"prompt": "hi", "completion": c, "label": c == "done"} for c in ("done", "no")))
    assert [b["reward"] for b in bodies] == [1.0, 0.0] and bodies[0]["task"] == bodies[1]["task"]


def test_several_completions_of_a_prompt(tmp_path):
    bodies, report = read(tmp_path, {"prompt": "hi", "completions": ["a", "b"], "rewards": [0, 1]})
    assert [(replied(b)[0]["content"], b["reward"]) for b in bodies] == [
        ("a", 0.0),
        ("b", 1.0),
    ] and report.episodes == 2


def test_a_reward_of_a_wrong_type_is_refused(tmp_path):
    assert "log.jsonl:1: reward" in read(tmp_path, {**ROW, "reward": {"x": 1}})[1].refused[0]


def test_metrics_in_columns(tmp_path):
    rows = {"prompt": [[ASK]] * 2, "completion": [[END]] * 2, "reward": [1, 0], "metrics": {"exact": [0.5, 0.25]}}
    bodies, report = read(tmp_path, rows)
    assert [b["metrics"] for b in bodies] == [{"exact": 0.5}, {"exact": 0.25}] and report.clean
