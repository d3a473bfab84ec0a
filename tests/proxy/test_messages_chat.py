"""Anthropic's format as a chat completion and back."""

from __future__ import annotations

import json

import pytest
from tests.proxy.fake_engine import dump, sse

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.messages_back import Back
from slipstream_proxy.dialects.messages_chat import to_chat

BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "f", "input_schema": {"properties": {"x": {"type": "integer"}}}, "cache_control": {"type": "ephemeral"}}


def test_a_plain_request():
    assert to_chat({**BODY, "metadata": {"user_id": "u"}, "stop_sequences": ["x"], "temperature": 0.5, "vendor": 1}) == {
        "model": "m", "messages": BODY["messages"], "max_tokens": 9, "max_completion_tokens": 9, "stop": ["x"], "temperature": 0.5,
        "tool_choice": None, "return_token_ids": True, "logprobs": True,
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
        ({"messages": [{"role": "system", "content": "x"}]}, "a message of another role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "images or other blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, "unreadable request"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "id": 1}]}]}, "a block with fields of another"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "a thinking budget was asked"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "structured output"),
        ({"tool_choice": {"type": "any"}, "tools": [TOOL]}, "forced tool"),
        ({"tools": []}, "an empty list of tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "a tool that is not the client's own"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs was asked"),
    ],
)  # fmt: skip
def test_what_goes_as_it_was_asked(change, reason):
    with pytest.raises(AsAsked, match=reason):
        to_chat({**BODY, **change})


def whole(message, **choice):
    made = {
        "message": {"role": "assistant", "content": None, "tool_calls": [], **message},
        "finish_reason": "stop",
        "stop_reason": None,
        **choice,
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    return json.loads(
        Back().whole(dump({"id": "chatcmpl-1", "model": "m", "choices": [made], "usage": usage}).encode())
    )


def test_a_whole_message():
    made = whole({"content": "hi"})
    assert list(made) == ["id", "type", "role", "content", "model", "stop_reason", "usage"]
    assert made["usage"] == {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4}
    assert made["content"] == [{"type": "text", "text": "hi"}] and made["stop_reason"] == "end_turn"
    assert whole({})["content"] == [{"type": "text", "text": ""}]
    assert whole({"content": "hi"}, stop_reason="x")["stop_sequence"] == "x"
    assert whole({"content": "hi"}, finish_reason="length")["stop_reason"] == "max_tokens"
    call = {"id": "t", "function": {"name": "f", "arguments": '{"x": 1}'}}
    made = whole({"reasoning": "hm", "tool_calls": [call]}, finish_reason="tool_calls")
    assert [c["type"] for c in made["content"]] == ["thinking", "tool_use"] and made["stop_reason"] == "tool_use"
    assert made["content"][1]["input"] == {"x": 1}
    with pytest.raises(ValueError, match="line 1"):
        whole({"tool_calls": [{"id": "t", "function": {"name": "f", "arguments": "{"}}]})


def stream(*deltas, finish="stop", stop=None):
    back = Back()
    chunks = [
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        *({"delta": d, "finish_reason": None} for d in deltas),
    ]
    chunks.append({"delta": {}, "finish_reason": finish, "stop_reason": stop})
    usage = {"prompt_tokens": 3, "completion_tokens": 0}
    made = b"".join(
        back.event(sse({"id": "c", "model": "m", "choices": [{"index": 0, **c}], "usage": usage})) or b""
        for c in chunks
    )
    made += back.event(sse({"id": "c", "model": "m", "choices": [], "usage": {**usage, "completion_tokens": 5}}))
    return [
        json.loads(e.split("data: ")[1]) for e in (made + back.event(b"data: [DONE]\n\n")).decode().split("\n\n") if e
    ]


def test_a_streamed_message():
    call = {"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}
    got = stream(
        {"reasoning": "h"}, {"reasoning": "m"}, {"content": "so"}, {"tool_calls": [call]}, {"content": "later"},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": 1}'}}]}, finish="tool_calls",
    )  # fmt: skip
    assert [(e["type"], e.get("index"), (e.get("delta") or e.get("content_block") or {}).get("type")) for e in got] == [
        ("message_start", None, None),
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, "text"),
        ("content_block_delta", 1, "text_delta"),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, "tool_use"),
        ("content_block_delta", 2, "input_json_delta"),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, "text"),
        ("content_block_delta", 3, "text_delta"),
        ("content_block_stop", 3, None),
        ("message_delta", None, None),
        ("message_stop", None, None),
    ]
    assert got[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and got[-2]["usage"] == {
        "input_tokens": 3,
        "output_tokens": 5,
    }


def test_a_tool_call_that_a_stop_string_cut_short():
    call = {"index": 0, "id": "t", "function": {"name": "f", "arguments": '{"x"'}}
    assert stream({"tool_calls": [call]}, stop="!")[-2]["delta"] == {
        "stop_reason": "stop_sequence",
        "stop_sequence": "!",
    }


def test_an_error_in_the_stream():
    back = Back()
    got = back.event(b'data: {"error": {"message": "oh"}}\n\n')
    assert got.startswith(b"event: error\n") and b"oh" in got and back.event(b"data: [DONE]\n\n") is None
