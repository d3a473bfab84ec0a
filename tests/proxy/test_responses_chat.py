"""The responses format as a chat completion and back."""

from __future__ import annotations

import json

import pytest
from tests.proxy.fake_engine import dump, sse

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.responses_back import Back
from slipstream_proxy.dialects.responses_chat import to_chat

BODY = {"model": "m", "input": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}


def test_a_plain_request():
    assert to_chat({**BODY, "instructions": "be kind", "max_output_tokens": 9, "metadata": {"a": "b"}, "vendor": 1, "store": False, "include": ["reasoning.encrypted_content"]}) == {
        "model": "m", "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}], "max_tokens": 9,
        "max_completion_tokens": 9, "return_token_ids": True, "logprobs": True,
    }  # fmt: skip


def test_items_become_messages():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}], "id": "msg_1", "status": "completed"},
        {"role": "assistant", "content": "more"},
        {"type": "message", "role": "developer", "content": "be brief"},
    ]  # fmt: skip
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in (1, 2)]
    assert to_chat({**BODY, "input": items})["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "assistant", "content": "so"},
        {"role": "assistant", "content": "more"},
        {"role": "developer", "content": "be brief"},
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"background": True}, "in the background"),
        ({"store": True}, "stored response"),
        ({"previous_response_id": "resp_1"}, "after an earlier response"),
        ({"include": ["message.output_text.logprobs"]}, "more was asked in the reply"),
        ({"text": {"format": {"type": "json_object"}}}, "structured output"),
        ({"tool_choice": "required", "tools": [TOOL]}, "forced tool"),
        ({"tools": [{"type": "web_search_preview"}]}, "a tool that is not the client's own"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "a tool that is not the client's own"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "images or other parts"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "items of other types"),
        ({"input": [{"type": "message", "role": "assistant", "content": "x", "status": "in_progress"}]}, "a reply to go on with"),
        ({"input": None}, "unreadable request"),
        ({"truncation": "auto"}, "truncation"),
        ({"include_reasoning": False}, "hidden reasoning"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs was asked"),
    ],
)  # fmt: skip
def test_what_goes_as_it_was_asked(change, reason):
    with pytest.raises(AsAsked, match=reason):
        to_chat({**BODY, **change})


def whole(message, asked=BODY, finish="stop"):
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    choice = {"message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    back = Back(asked)
    back.context = 100
    return json.loads(back.whole(dump({"id": "c", "model": "m", "choices": [choice], "usage": usage}).encode()))


def test_a_whole_response():
    made = whole({"content": "hi"}, {**BODY, "temperature": 0, "top_p": 0.5, "metadata": {"a": "b"}})
    assert (
        made["status"] == "completed"
        and made["max_output_tokens"] == 93
        and made["top_p"] == 1.0
        and made["metadata"] == {"a": "b"}
    )
    assert made["usage"]["input_tokens_details"]["cached_tokens"] == 4 and made["usage"]["total_tokens"] == 9
    assert made["tool_choice"] == "none" and made["tools"] == []
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    made = whole({"reasoning": "hm", "content": "x", "tool_calls": [call]}, {**BODY, "tools": [TOOL]}, "length")
    assert [o["type"] for o in made["output"]] == ["reasoning", "message", "function_call"]
    assert made["status"] == "incomplete" and made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made["tools"][0]["description"] is None and made["tool_choice"] == "auto"


def test_a_streamed_response():
    back = Back(BODY)
    back.context = 100
    calls = [{"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": "{}"}} for i in range(2)]
    deltas = [{"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": "so"}, {}, {"tool_calls": calls}]
    made = b""
    for i, delta in enumerate(deltas):
        event = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        made += back.event(sse(event if i else {**event, "prompt_token_ids": [1, 2, 3]})) or b""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert back.event(sse({"id": "c", "model": "m", "choices": [], "usage": usage})) is None
    made += back.event(b"data: [DONE]\n\n")
    got = [json.loads(e.split("data: ")[1]) for e in made.decode().split("\n\n") if e]
    assert [e["type"].removeprefix("response.") for e in got] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [e["sequence_number"] for e in got] == list(range(len(got)))
    assert got[0]["response"]["max_output_tokens"] == 97 and got[0]["response"]["output"] == []
    assert [o["type"] for o in got[-1]["response"]["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]


def test_an_error_in_the_stream():
    back = Back(BODY)
    got = back.event(b'data: {"error": {"message": "oh", "type": "x"}}\n\n')
    assert got.startswith(b"event: error\n") and b"oh" in got and back.event(b"data: [DONE]\n\n") is None
