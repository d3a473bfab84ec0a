"""Inputs and outputs as programs write them down."""

from __future__ import annotations

import json

import pytest
from tests.support.logs import ASK, END

from slipstream_chat.inputs import messages_of
from slipstream_chat.report import Place, Report


@pytest.mark.parametrize(
    "told",
    [
        [ASK, END], {"messages": [ASK, END]}, [[ASK, END]], {"input": [ASK, END]}, '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "done"}]',
        {"kwargs": {}, "messages": [[ASK, END]]}, [["human", "hi"], ["ai", "done"]],
    ],
)  # fmt: skip
def test_messages_in_their_frames(told):
    assert messages_of(told, "user", Place(Report(), "f:1")) == [ASK, END]


@pytest.mark.parametrize(
    "told", [END, "done", {"choices": [{"message": END}]}, {"generations": [[{"text": "done"}]]}, {"output": "done"}, [{"type": "text", "text": "done"}]]
)  # fmt: skip
def test_replies_in_their_frames(told):
    assert messages_of(told, "assistant", Place(Report(), "f:1")) == [END]


@pytest.mark.parametrize(
    "said", [{"answer": 4}, {"name": "f", "parameters": {}}, [1, 2], 4, '["a", "b"]', "{b", "[x] y"]
)
def test_what_a_model_answered_as_json_is_what_it_said(said):
    report = Report()
    for value in (said, json.dumps(said) if not isinstance(said, str) else said):
        (message,) = messages_of(value, "assistant", Place(report, "f:1"))
        assert message == {"role": "assistant", "content": said if isinstance(said, str) else json.dumps(said)}
    assert report.clean


def test_token_ids_and_unknown_objects_are_no_question():
    report = Report()
    assert (
        messages_of([1, 2], "user", Place(report, "f:1")) == messages_of({"a": 1}, "user", Place(report, "f:1")) == []
    )
    assert report.dropped.total() == 3
    (message,) = messages_of('{"a": 1}', "user", Place(report, "f:1"))
    assert message["content"] == '{"a": 1}'


def test_an_object_that_a_tool_answered_is_text():
    (message,) = messages_of([{"role": "tool", "content": {"a": 1}}], "user", Place(Report(), "f:1"))
    assert message == {"role": "tool", "content": '{"a": 1}'}
