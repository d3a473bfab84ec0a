"""The responses format as a chat completion and back."""

from __future__ import annotations

import pytest

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.responses_chat import to_chat

BODY = {"model": "m", "input": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}


def test_a_plain_request():
    assert to_chat({**BODY, "instructions": "be kind", "max_output_tokens": 9, "metadata": {"a": "b"}, "vendor": 1, "store": False, "include": ["reasoning.encrypted_content"]}) == {
        "model": "m", "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}], "max_tokens": 9,
        "max_completion_tokens": 9,
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
