"""Messages in the spellings of other programs."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream_chat.messages import call_of, expand
from slipstream_chat.report import Place, Report

CALL = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


def place():
    return Place(Report(), "f:1")


@pytest.mark.parametrize(
    "spelt",
    [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"type": "ai", "content": "", "additional_kwargs": {"tool_calls": [CALL]}},
        {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "ls", "args": {}, "id": "c"}]}},
        {"lc": 1, "type": "constructor", "id": ["x", "AIMessageChunk"], "kwargs": {"content": "", "tool_calls": [{"name": "ls", "args": {}, "id": "c"}]}},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "ls", "input": {}}]},
        {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "c", "toolName": "ls", "args": {}}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "ls", "arguments": None}]},
        {"role": "assistant", "parts": [{"type": "tool-ls", "toolCallId": "c", "input": {}, "state": "input-available"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "ls", "args": {}}}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "ls", "input": {}}}]},
    ],
)  # fmt: skip
def test_a_tool_call_in_every_spelling(spelt):
    (message,) = expand(spelt, "user", place())
    assert message["role"] == "assistant" and not message["content"] and message["tool_calls"] == [CALL]


@pytest.mark.parametrize(
    "spelt",
    [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
        {
            "role": "tool",
            "content": [{"type": "tool-result", "toolCallId": "c", "output": {"type": "text", "value": "x"}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "x"}]},
        {"type": "tool", "content": "x", "tool_call_id": "c"},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "x"}]}}]},
    ],
)
def test_a_tool_s_answer_in_every_spelling(spelt):
    (message,) = expand(spelt, "user", place())
    assert {k: message[k] for k in ("role", "tool_call_id", "content")} == {
        "role": "tool",
        "tool_call_id": "c",
        "content": "x",
    }


def test_texts_pairs_and_what_says_nothing():
    assert expand("hi", "user", place()) == expand(["human", "hi"], "x", place()) == [{"role": "user", "content": "hi"}]
    assert expand({"role": "developer", "content": "s"}, "user", place())[0]["role"] == "system"
    assert expand(None, "user", place()) == []
    at = place()
    assert expand(3, "user", at) == [] and at.report.dropped.total() == 1


def test_a_call_without_a_name_is_told():
    at = place()
    call_of({"id": "c"}, at)
    assert ("a tool call", "it names no tool") in at.report.dropped


def test_pictures_are_kept_and_unknown_fields_told():
    at = place()
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    found: Any = expand({"role": "user", "content": [{"type": "text", "text": "see"}, picture], "mood": 1}, "user", at)
    (message,) = found
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert [what for what, _ in at.report.dropped] == ["messages' field mood"]


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        ("three files", "three files"),
        ([{"functionResponse": {"id": "c", "name": "ls", "response": {"output": "three files"}}}], "three files"),
        ({"files": 3}, '{"files": 3}'),
        ([], None),
    ],
)
def test_what_a_tool_answered_in_its_call_itself_is_kept(result, answer):
    """Gemini CLI's session files."""
    said = {"type": "gemini", "content": "Let me look.", "toolCalls": [{"id": "c", "name": "ls", "args": {}, "result": result}]}  # fmt: skip
    message, *answers = expand(said, "user", where := place())
    assert message["tool_calls"] == [CALL]
    assert [a["tool_call_id"] for a in answers] == ["c"] * (answer is not None)
    assert all(answer in str(a["content"]) for a in answers) and not where.report.dropped


@pytest.mark.parametrize(
    ("more", "dropped"),
    [
        ({"function_call": {"name": "ls", "arguments": "{}"}}, []),
        ({"function_call": {"name": "rm", "arguments": "{}"}}, ["messages' field function_call"]),
        ({"function_call": {"name": "ls", "arguments": "{}"}, "audio": {"id": "a"}}, ["messages' field audio"]),
        ({"reward": 0.5}, ["messages' field reward"]),
        ({"score": 0.5, "additional_kwargs": {"x": 1}}, ["messages' field score"]),
        ({"reward": None, "audio": None}, []),
    ],
)
def test_what_a_message_says_beside_its_tool_calls_is_kept_or_told(more, dropped):
    (message,) = expand({"role": "assistant", "content": "", "tool_calls": [CALL], **more}, "user", where := place())
    assert message["tool_calls"] == [CALL] and not {"reward", "score"} & message.keys()
    assert [what for what, _ in where.report.dropped] == dropped
