"""A chat reply as Anthropic's message."""

from __future__ import annotations

import json

import pytest
from tests.support.fake_engine import dump, sse

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.messages import MessagesTranslator, to_chat


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
    with pytest.raises(ValueError, match="no JSON object"):
        whole({"tool_calls": [{"id": "t", "function": {"name": "f", "arguments": "{"}}]})


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
    back = MessagesTranslator({"messages": []})
    got = back.event(b'data: {"error": {"message": "oh"}}\n\n')
    assert got.startswith(b"event: error\n") and b"oh" in got and back.event(b"data: [DONE]\n\n") is None


def whole(message, **choice):
    made = {
        "message": {"role": "assistant", "content": None, "tool_calls": [], **message},
        "finish_reason": "stop",
        "stop_reason": None,
        **choice,
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    return json.loads(
        MessagesTranslator({"messages": []}).whole(
            dump({"id": "chatcmpl-1", "model": "m", "choices": [made], "usage": usage}).encode()
        )
    )


def stream(*deltas, finish="stop", stop=None):
    back = MessagesTranslator({"messages": []})
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


INLINE = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}]


@pytest.mark.parametrize(
    ("merges", "expected"),
    [(False, [{"role": "system", "content": "x"}, *INLINE]), (True, [{"role": "system", "content": "xb"}, INLINE[0], INLINE[2]])],
)  # fmt: skip
def test_system_messages_go_where_the_template_takes_them(merges, expected):
    body = {"model": "m", "max_tokens": 9, "system": "x", "messages": INLINE, "thinking": {"type": "disabled"}}
    chat, back = to_chat(body), MessagesTranslator(body)
    assert back.template_needed
    back.settle(chat, merges=merges, quiet="low")
    assert chat["messages"] == expected and chat["reasoning_effort"] == "low" and not back.template_needed
    for known, reason in (
        ({"merges": None, "quiet": "low"}, "role system"),
        ({"merges": True, "quiet": None}, "thinking"),
    ):
        with pytest.raises(AsAsked, match=reason):
            MessagesTranslator(body).settle(to_chat(body), **known)
    assert not MessagesTranslator({**body, "messages": INLINE[:1], "thinking": {"type": "adaptive"}}).template_needed
