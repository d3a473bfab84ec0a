"""Anthropic's format as a chat completion and back."""

from __future__ import annotations

import pytest

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.messages import to_chat

BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "f", "input_schema": {"properties": {"x": {"type": "integer"}}}, "cache_control": {"type": "ephemeral"}}


def test_a_plain_request():
    assert to_chat({**BODY, "metadata": {"user_id": "u"}, "stop_sequences": ["x"], "temperature": 0.5, "vendor": 1}) == {
        "model": "m", "messages": BODY["messages"], "max_tokens": 9, "max_completion_tokens": 9, "stop": ["x"], "temperature": 0.5,
        "tool_choice": None,
    }  # fmt: skip


def test_a_conversation_with_tools():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": "é"}, "caller": {"type": "direct"}, "text": None}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}], "is_error": False}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2"}, {"type": "text", "text": "go on"}]},
        {"role": "assistant", "content": [{"type": "text", "text": ""}]},
    ]  # fmt: skip
    made = to_chat({**BODY, "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be kind"}], "messages": messages, "tools": [TOOL], "stream": True, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}})  # fmt: skip
    assert made["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "reasoning": "hm", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"x": "\\u00e9"}'}}], "content": "so"},
        {"role": "tool", "tool_call_id": "t1", "content": "1\n2"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "go on"},
        {"role": "assistant"},
    ]  # fmt: skip
    assert made["tools"][0]["function"]["parameters"]["type"] == "object" and "type" not in TOOL["input_schema"]
    assert made["tool_choice"] == "auto" and made["parallel_tool_calls"] is False
    assert made["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_tokens": None}, "unreadable request"),
        ({"messages": "hi"}, "unreadable request"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "a message of the role developer"),
        ({"messages": [{"role": "a\nb", "content": "x"}]}, "a message of the role unknown"),
        ({"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]}, "images or other blocks: tool_addition"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "images or other blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "unreadable request"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "id": 1}]}]}, "a block with fields of another"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "unreadable request"),
        ({"thinking": {"type": "new"}}, "thinking of the type new"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "structured output"),
        ({"tool_choice": {"type": "any"}, "tools": [TOOL]}, "forced tool"),
        ({"tools": []}, "an empty list of tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "a hosted tool: web_search_20250305"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs was asked"),
    ],
)  # fmt: skip
def test_what_goes_as_it_was_asked(change, reason):
    with pytest.raises(AsAsked, match=reason):
        to_chat({**BODY, **change})


def test_a_thinking_budget_is_asked_as_the_engine_asks_it():
    asked = {**BODY, "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert to_chat(asked)["thinking_token_budget"] == 2000
    assert "reasoning_effort" not in to_chat({**BODY, "thinking": {"type": "disabled"}})  # the template says which
