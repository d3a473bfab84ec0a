"""Messages and responses: equal to what vLLM's own routes answer, although they are asked as chat completions, and recorded exactly."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.comparing import ask, detokenized, same
from tests.support.requests import TOOL
from tests.support.running import spooled

pytestmark = pytest.mark.engine

TEXT = "When is the meeting? ünï ✓ \U0001f600"
SCHEMA = TOOL["function"]["parameters"]
SAY: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_tokens": 24}
SAY_TOOLS = {
    **SAY,
    "tools": [{"name": "search", "description": "find mails", "input_schema": SCHEMA}],
    "max_tokens": 48,
}
IMAGE = "iVBORw0KGgo="
MESSAGES: dict[str, dict[str, Any]] = {
    "plain": SAY,
    "system": {**SAY, "system": "be kind"},
    "system blocks": {**SAY, "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]},
    "system message": {**SAY, "messages": [{"role": "system", "content": "be kind"}, *SAY["messages"]]},
    "tools": SAY_TOOLS,
    "tools, serial": {**SAY_TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "tools, none": {**SAY_TOOLS, "tool_choice": {"type": "none"}},
    "tools, any": {**SAY_TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 200},
    "tools, named": {**SAY_TOOLS, "tool_choice": {"type": "tool", "name": "search"}, "max_tokens": 200},
    "no tools": {**SAY, "tools": []},
    "a tool of theirs": {**SAY, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "history": {**SAY_TOOLS, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}, {"type": "tool_use", "id": "t1", "name": "search", "input": {"keywords": "é"}, "caller": {"type": "direct"}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "mail 1"}]}, {"type": "text", "text": "go on"}]}]},
    "as Claude Code asks": {**SAY_TOOLS, "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be kind"}], "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "context_management": {"edits": []}, "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}, {"role": "system", "content": "agents: none"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "search", "input": {"keywords": "é"}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "mail 1"}]}, {"role": "system", "content": [{"type": "text", "text": "be brief"}]}]},
    "stop": {**SAY, "stop_sequences": ["e"]},
    "begun": {**SAY, "messages": [*SAY["messages"], {"role": "assistant", "content": "It is"}]},
    "thinking": {**SAY, "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
    "no thinking": {**SAY, "thinking": {"type": "disabled"}},
    "top_k": {**SAY, "temperature": 1.0, "top_k": 1},
    "unknown field": {**SAY, "x_vendor": {"a": [1, None]}, "metadata": {"user_id": "u"}},
    "image": {**SAY, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}]}]},
    "surrogate": {**SAY, "messages": [{"role": "user", "content": "a\ud800b"}]},
    "1 MB": {**SAY, "messages": [{"role": "user", "content": "word " * 210_000}]},
    "bad messages": {**SAY, "messages": "bad"},
    "bad block": {**SAY, "messages": [{"role": "user", "content": [{"type": "new"}]}]},
    "bad temperature": {**SAY, "temperature": -1},
    "no max_tokens": {"messages": SAY["messages"]},
    "nobody": {**SAY, "model": "nobody"},
}  # fmt: skip
ASK: dict[str, Any] = {"input": TEXT, "temperature": 0, "max_output_tokens": 24}
ASK_TOOLS = {**ASK, "tools": [{"type": "function", **TOOL["function"]}], "max_output_tokens": 48}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": ASK,
    "no limit": {"input": TEXT, "temperature": 0, "instructions": "be kind", "metadata": {"a": "b"}, "user": "u", "stop": ["e"]},
    "defaults": {"input": TEXT, "temperature": 1.0, "top_k": 1, "max_output_tokens": 8, "top_p": 0.9, "seed": 1, "presence_penalty": 0.5},
    "items": {**ASK, "input": [{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]},
    "tools": ASK_TOOLS,
    "tools, serial": {**ASK_TOOLS, "parallel_tool_calls": False},
    "tools, none": {**ASK_TOOLS, "tool_choice": "none"},
    "tools, required": {**ASK_TOOLS, "tool_choice": "required", "max_output_tokens": 200},
    "no tools": {**ASK, "tools": []},
    "history": {**ASK_TOOLS, "input": [{"role": "user", "content": "a"}, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}, {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [{"type": "output_text", "text": "so", "annotations": []}]}, {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "search", "arguments": '{"keywords": "a"}'}, {"type": "function_call_output", "call_id": "c1", "output": "mail 1"}, {"role": "assistant", "content": "well"}, {"role": "user", "content": "go on"}]},
    "as Codex asks": {**ASK_TOOLS, "tools": [*ASK_TOOLS["tools"], {"type": "namespace", "name": "agents", "description": "n", "tools": [{"type": "function", "name": "spawn", "description": "d", "strict": False, "parameters": SCHEMA}]}, {"type": "custom", "name": "apply_patch", "description": "edit"}, {"type": "web_search", "external_web_access": True}], "input": [{"type": "message", "id": "m1", "role": "developer", "content": [{"type": "input_text", "text": TEXT}]}, {"type": "function_call", "call_id": "c1", "name": "spawn", "namespace": "agents", "arguments": "{}"}, {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** é"}, {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]}, {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"}], "include": ["reasoning.encrypted_content"], "store": False, "prompt_cache_key": "k", "parallel_tool_calls": True, "tool_choice": "auto", "instructions": "be kind"},
    "logprobs": {**ASK, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "json": {**ASK, "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object", "properties": {"day": {"enum": ["Mon", "Tue"]}}, "required": ["day"]}}}},
    "text": {**ASK, "text": {"format": {"type": "text"}, "verbosity": "low"}},
    "reasoning": {**ASK, "reasoning": {"effort": "low"}},
    "stored": {**ASK, "store": True},
    "in the background": {**ASK, "background": True},
    "after another": {**ASK, "previous_response_id": "resp_none"},
    "unknown field": {**ASK, "x_vendor": {"a": [1, None]}},
    "image": {**ASK, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}]}]},
    "surrogate": {**ASK, "input": "a\ud800b"},
    "1 MB": {**ASK, "input": "word " * 210_000},
    "bad input": {**ASK, "input": 3},
    "bad temperature": {**ASK, "temperature": -1},
    "nobody": {**ASK, "model": "nobody"},
}  # fmt: skip


def each(cases: dict[str, Any]) -> list[Any]:
    """Streamed and not; what is refused comes as one body anyway."""
    refused = ("bad", "1 MB", "nobody", "no max_tokens", "image")
    return [
        pytest.param(n, s, id=f"{n}{' streamed' if s else ''}")
        for n in cases
        for s in (False, True)
        if not (s and n.startswith(refused))
    ]


@pytest.mark.parametrize(("name", "stream"), each(MESSAGES))
def test_messages(engine, proxy, name, stream):
    same(engine, proxy, "/v1/messages", {**MESSAGES[name], **({"stream": True} if stream else {})})


@pytest.mark.parametrize(("name", "stream"), each(RESPONSES))
def test_responses(engine, proxy, name, stream):
    same(engine, proxy, "/v1/responses", {**RESPONSES[name], **({"stream": True} if stream else {})})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "cases", "name"),
    [
        *(
            ("/v1/messages", MESSAGES, n)
            for n in ("plain", "as Claude Code asks", "no thinking", "tools", "tools, none", "history", "begun")
        ),
        *(
            ("/v1/responses", RESPONSES, n)
            for n in ("plain", "no limit", "as Codex asks", "tools", "tools, none", "history")
        ),
    ],
)
def test_what_was_recorded_is_what_was_sampled(engine, proxy, path, cases, name, stream):
    """The prompt's ids are those that vLLM renders for its own route, the sampled ids say the reply, each has its log-probability."""
    body = {**cases[name], "temperature": 1.0}
    reply = ask(proxy.url, path, {**body, "stream": True} if stream else body)
    assert reply.status_code == 200
    head, read = spooled(proxy, reply.headers["x-slipstream-call"])
    assert read.untrainable is None, read.untrainable
    rendered = ask(engine.url, f"{path}/render", body)
    assert rendered.status_code == 200, rendered.text
    assert read.prompt_ids == rendered.json()["token_ids"]
    (choice,) = read.choices
    assert len(choice.logprobs) == len(choice.completion_ids) > 0
    text = detokenized(engine, choice.completion_ids)
    assert text.startswith((choice.message["content"] or "").split("<", 1)[0])
    usage = reply.json()["usage"] if not stream else None
    assert usage is None or usage["output_tokens"] == len(choice.completion_ids)
