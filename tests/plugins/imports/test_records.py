"""Calls become talks, and talks bodies."""

from __future__ import annotations

from typing import Any

from tests.support.logs import ASK, END, TOLD, USE

from slipstream_chat.report import Place, Report
from slipstream_imports.records import LogRun, ModelCall, Told, labels, said, talks_of


def test_calls_are_found_in_the_later_call_that_repeats_them():
    report = Report()
    spelt = {**USE, "content": "", "tool_calls": [{**USE["tool_calls"][0], "id": "other"}]}
    calls = [
        ModelCall([ASK], [USE], Told(1.0)),
        ModelCall([ASK, spelt, TOLD], [END], Told(3.0)),
        ModelCall([TOLD], [END], Told(2.0)),
    ]
    talks = talks_of(calls, Place(report, "f"))
    assert [sorted(t.replies) for t in talks] == [[1], [1, 3]] and report.clean
    again = talks_of([calls[0], calls[0]], Place(report, "f"))
    assert len(again) == 1 and report.dropped.total() == 1


def test_the_first_body_has_the_rewards_and_all_one_name():
    run = LogRun("f:1", "a b", None, reward=1.0, metrics={"x y": 0.5}, talks=[said([ASK, END]), said([ASK, USE])])
    bodies: Any = run.bodies("task", Report())
    first, second = bodies
    assert first["id"] == second["id"] != "a b" and first["task"] == "task"
    assert first["reward"] == 1.0 and list(first["metrics"].values()) == [0.5] and "reward" not in second
    assert LogRun("f:1", talks=[said([ASK])]).bodies(None, Report()) == []


def test_the_same_talk_without_a_name_has_the_same_name():
    made = [LogRun(f"f:{n}", talks=[said([ASK, END])]).bodies(None, Report())[0]["id"] for n in range(2)]
    assert made[0] == made[1]


def test_tags_that_are_no_text_are_told():
    report = Report()
    assert labels({"a": 1, "b": [1], "c": None, "d": "x\ny"}, Place(report, "f")) == {"a": "1", "d": "x y"}
    assert [what for what, _ in report.dropped] == ["tag b"]
