"""Whatever a client sends: translated or left alone, and its own body untouched."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dialects import head

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import stream_events
from slipstream_proxy.dialects.through_chat import items

NAMES = [
    "type", "role", "content", "text", "name", "id", "input", "call_id", "arguments", "output", "summary", "tools", "tool_choice", "model", "max_tokens",
    "messages", "system", "thinking", "metadata", "stream", "temperature", "function", "parameters", "input_schema", "reasoning", "status", "store",
    "parts", "functionCall", "functionResponse", "functionDeclarations", "args", "response", "thinkingConfig",
]  # fmt: skip
WORDS = [
    "message", "text", "input_text", "output_text", "function_call", "function_call_output", "reasoning", "tool_use", "tool_result", "thinking", "user",
    "assistant", "system", "auto", "none", "function", "adaptive", "x",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(NAMES), v, max_size=5),
    max_leaves=25,
)
BLOCK = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)
BODY = st.fixed_dictionaries({}, optional={
    "model": st.just("m") | VALUES, "max_tokens": st.just(5) | VALUES, "messages": st.lists(BLOCK, max_size=3) | VALUES,
    "input": st.lists(BLOCK, max_size=3) | VALUES, "system": VALUES, "tools": st.lists(BLOCK, max_size=2) | VALUES, "tool_choice": VALUES,
    "contents": st.lists(BLOCK, max_size=3) | VALUES, "generationConfig": VALUES, "instructions": VALUES, "thinking": VALUES, "output_config": VALUES, "text": VALUES, "reasoning": VALUES, "store": VALUES, "stream": VALUES,
})  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(["messages", "responses", "gemini"]), BODY)
def test_any_request(name, body):
    dialect, before = BY_NAME[name], copy.deepcopy(body)
    made = dialect.inject(body)
    dialect.turn(body)
    assert body == before
    if made.back is None:
        assert made.body is body and made.note
    else:
        assert made.note is None and made.body["return_token_ids"] is True and made.body["logprobs"] is True
        assert isinstance(made.body["messages"], list)
        json.dumps(made.body)


@pytest.mark.parametrize(
    ("value", "found"), [("a", [{"role": "user", "content": "a"}]), ([1], [1]), (None, []), ({}, [])]
)
def test_items(value, found):
    assert items(value) == found


TOOL = {"index": 0, "id": "call_9", "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}}
CHUNKS = {
    # the first has text, a call comes whole, and no chunk counts tokens
    "ollama": [({"role": "assistant", "content": "", "reasoning": "so"}, None), ({"content": "It is"}, None), ({"content": " blue"}, None),
               ({"role": "assistant", "content": "", "tool_calls": [TOOL]}, None), ({"role": "assistant", "content": ""}, "tool_calls")],
    "hosted": [({"role": "assistant", "content": "It is"}, None), ({"content": " blue"}, None), ({"tool_calls": [TOOL]}, None), ({}, "tool_calls")],
    "llama.cpp": [({"role": "assistant", "content": None}, None), ({"reasoning_content": "so"}, None), ({"content": "It is"}, None), ({"content": " blue"}, None),
                  ({"tool_calls": [{**TOOL, "function": {"name": "look", "arguments": ""}}]}, None),
                  ({"tool_calls": [{"index": 0, "function": {"arguments": '{"at":"sky"}'}}]}, None), ({}, "tool_calls")],
}  # fmt: skip
"""Streams of servers that are no vLLM: each delta, and how the choice ends with it."""
ASKED: dict[str, dict] = {
    "messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "gemini": {
        "contents": [{"parts": [{"text": "hi"}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    },
}


@pytest.mark.parametrize("server", CHUNKS)
@pytest.mark.parametrize("name", ASKED)
def test_the_streams_of_other_servers(name, server):
    dialect = BY_NAME[name]
    asked = {"model": "m", "stream": True, **ASKED[name]}
    back = dialect.as_chat(asked).back
    made = b""
    for delta, end in CHUNKS[server]:
        chunk = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        made += back.event(b"data: " + json.dumps(chunk).encode() + b"\n\n") or b""
    if server == "llama.cpp":
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        made += (
            back.event(
                b"data: " + json.dumps({"id": "x", "model": "m", "choices": [], "usage": usage}).encode() + b"\n\n"
            )
            or b""
        )
    made += back.event(b"data: [DONE]\n\n")

    said = json.dumps(
        [
            choice.message
            for choice in dialect.parse(json.dumps(asked).encode(), made, head(dialect=name, stream=True)).choices
        ]
    )
    assert "It is blue" in said and "look" in said and "sky" in said, made
    assert (b'"so"' in made) == (server != "hosted"), "thoughts"
    assert made.count(
        {"messages": b'"stop_reason":"tool_use"', "responses": b"response.completed", "gemini": b'"finishReason"'}[name]
    ) == (2 if name == "responses" else 1), made
    assert dialect.terminal(list(stream_events(made))[-1])
