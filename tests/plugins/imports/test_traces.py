"""What the traces of all tools have in common."""

from __future__ import annotations

from tests.support.logs import ASK, END, TOLD, USE

from slipstream_chat.inputs import tool_of
from slipstream_chat.report import Place, Report
from slipstream_imports.records import ModelCall
from slipstream_imports.traces import Trace, replies_of, sent_of, usage_of


def test_scores_of_one_name_are_all_kept():
    trace = Trace(
        "t", "f", scores=[("x", 0.5, False), ("x", 1.0, True), ("reward", 0.1, False), ("reward", 0.2, False)]
    )
    run = trace.run("tool", Report())
    assert run.metrics == {"x": 1.0, "x.2": 0.5, "reward.1": 0.1, "reward.2": 0.2} and run.reward is None
    assert Trace("t", "f", scores=[("reward", 0.1, False)]).run("tool", Report()).reward == 0.1


def test_calls_without_messages_or_reply_are_told():
    trace, report = Trace("t", "f"), Report()
    trace.call("a", None, ModelCall([ASK], []))
    trace.call("b", None, ModelCall([], [END]))
    assert trace.run("tool", report).calls == [] and report.dropped.total() == 2


def test_an_output_with_what_was_sent_is_what_is_new():
    place = Place(Report(), "f")
    assert replies_of({"messages": [ASK, END]}, [ASK], place) == [END]
    assert replies_of([USE, TOLD, END], [ASK], place) == [USE] and place.report.dropped.total() == 1


def test_tools_and_tokens_by_any_name():
    tool = {"type": "function", "function": {"name": "ls", "description": "d", "parameters": {}}}
    assert tool_of({"name": "ls", "description": "d", "input_schema": {}}) == tool_of(tool) == tool
    assert sent_of([ASK, {"role": "tool", "content": tool}], Place(Report(), "f")) == ([ASK], [tool])
    assert usage_of(None, {"input_tokens": 3, "completionTokens": "2"}) == (3, 2)
