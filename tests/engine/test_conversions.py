"""Messages and responses become the chat requests that vLLM's own code makes of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from slipstream_proxy.dialects.messages import MessagesTranslator
from slipstream_proxy.dialects.messages import to_chat as message_to_chat
from slipstream_proxy.dialects.responses import ResponsesTranslator, begun_input, decoded_input, said_back
from slipstream_proxy.dialects.responses import to_chat as response_to_chat

pytestmark = pytest.mark.engine

TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {"x": {"type": "integer"}}}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "1"}]}
CODE = [
    {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "go"}]},
    {"role": "system", "content": "Available agents"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
    {"role": "user", "content": [RESULT]},
    {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "todo"}]},
    {"role": "system", "content": "x-anthropic-billing-header: 2"},
]  # fmt: skip
"""As Claude Code asks."""
THINKING = ({"type": "adaptive"}, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, None)
SYSTEM = ("be kind", [{"type": "text", "text": "x-anthropic-billing-header: 0"}, {"type": "text", "text": "a"}], None)


@pytest.mark.parametrize(("merges", "thinking", "system"), list(itertools.product((False, True), THINKING, SYSTEM)))
def test_messages(merges, thinking, system):
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    body = {"model": "m", "max_tokens": 4096, "messages": CODE, "tools": [TOOL], "thinking": thinking, "system": system}
    body |= {"output_config": {"effort": "high"}}
    ours, back = message_to_chat(body), MessagesTranslator(body)
    back.settle(ours, merges=merges, quiet="low")
    asked = AnthropicMessagesRequest.model_validate(json.loads(json.dumps(body)))
    theirs = AnthropicServingMessages.to_chat_completion_request(
        asked, merge_inline_system=merges, disabled_thinking_effort="low"
    )
    made = [r.model_dump(exclude={"request_id"}) for r in (ChatCompletionRequest.model_validate(ours), theirs)]
    assert made[0] == {**made[1], "stop": []}  # what is not asked


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "g", "parameters": {"type": "object"}, "strict": False, "description": "d"},
    {"type": "namespace", "name": "agents", "description": "n", "tools": [{"type": "function", "name": "spawn", "description": "d", "strict": False, "parameters": {"type": "object"}}]},
    {"type": "custom", "name": "apply_patch", "description": "edit", "format": {"type": "text"}},
    {"type": "web_search", "external_web_access": True},
    {"type": "local_shell"},
]  # fmt: skip
ITEMS = [
    {"type": "message", "id": "m1", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "function_call", "call_id": "c1", "name": "spawn", "namespace": "agents", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": '*** "é"\n'},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
]


def test_responses():
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts

    from slipstream_vllm.adapters import RESPONSE_MODELS, response_fields

    body = {"model": "m", "input": ITEMS, "tools": TOOLS, "store": False}
    ours = response_to_chat(body)
    asked = ResponsesRequest.model_validate(json.loads(json.dumps(body)))
    tools = construct_tool_dicts(asked.tools, "auto")
    assert [t.model_dump() for t in ChatCompletionRequest.model_validate(ours).tools or ()] == tools
    made = construct_input_messages(request_input=asked.input)
    calls = [[(c["id"], dict(c["function"])) for c in m["tool_calls"]] for m in (ours["messages"][1], made[1])]
    assert calls[0] == calls[1] and len(calls[0]) == 2
    assert [(m["role"], m["tool_call_id"]) for m in ours["messages"][2:]] == [
        (m["role"], m["tool_call_id"]) for m in made[2:]
    ]
    back = [t.model_dump(by_alias=True) for t in asked.tools]
    fields = response_fields()
    assert set(fields) == set(RESPONSE_MODELS)
    back_here = ResponsesTranslator(body)
    back_here.say_back(fields)
    assert json.dumps([said_back(t, back_here.fields) for t in TOOLS]) == json.dumps(back)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"input": "*** Begin Patch\\n+ \\"é\\" \\\\\\\\ \\u00e9 \\ud83d\\ude00 end"}',
        '{"input":"","more":1}',
        ' {"other": "x", "input": "y"} ',
        '{"input": 3}',
        "*** Begin Patch",
        '"text"',
        "[1]",
    ],
)
def test_the_input_of_a_custom_tool(arguments):
    from vllm.entrypoints.openai.responses.utils import decode_custom_tool_input, decode_custom_tool_input_prefix

    assert decoded_input(arguments) == decode_custom_tool_input(arguments)
    for end in range(len(arguments) + 1):
        assert begun_input(arguments[:end]) == decode_custom_tool_input_prefix(arguments[:end]), arguments[:end]
