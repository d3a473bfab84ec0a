"""Whatever a client sends: translated or left alone, and its own body untouched."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.dialects import BY_NAME
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
