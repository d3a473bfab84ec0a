"""The responses format as a chat completion and back."""

from __future__ import annotations

import pytest

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.responses import to_chat

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
        ({"tools": [{"type": "web_search_preview"}]}, "a hosted tool: web_search_preview"),
        ({"tools": [{"type": "web_search"}]}, "no tool that the model can call"),
        ({"tools": [TOOL, {"type": "web_search", "filters": {"allowed_domains": ["x"]}}]}, "a hosted tool: web_search"),
        ({"tools": [{"type": "custom", "name": "p", "format": {"type": "grammar"}}]}, "a custom tool with a grammar: p"),
        ({"tools": [{"type": "namespace", "name": "n", "description": "", "tools": [{"type": "custom", "name": "c"}]}]}, "a tool in a namespace"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "a hosted tool: mcp"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "images or other parts: input_image"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "an item of the type item_reference"),
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


HOSTED = {"type": "web_search", "external_web_access": True}
SPACE = {"type": "namespace", "name": "agents", "description": "Sub-agents", "tools": [{**TOOL, "name": "spawn"}]}
PATCH = {"type": "custom", "name": "apply_patch", "description": "edit", "format": {"type": "text"}}


def test_the_model_sees_namespaces_and_custom_tools_as_functions_and_no_hosted_tool():
    items = [
        {"type": "function_call", "call_id": "c1", "name": "spawn", "namespace": "agents", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** é"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
    ]
    made = to_chat({**BODY, "input": items, "tools": [TOOL, SPACE, PATCH, HOSTED]})
    assert [t["function"]["name"] for t in made["tools"]] == ["f", "agents__spawn", "apply_patch"]
    assert made["tools"][2]["function"]["parameters"]["required"] == ["input"]
    assert [c["function"] for c in made["messages"][0]["tool_calls"]] == [
        {"name": "agents__spawn", "arguments": "{}"},
        {"name": "apply_patch", "arguments": '{"input": "*** é"}'},
    ]
    assert [m["content"] for m in made["messages"][1:]] == [[{"type": "text", "text": "done"}], "ok"]
