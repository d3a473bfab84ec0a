"""Nothing added, nothing lost: the same requests straight to vLLM and through the proxy, compared in status, headers, body and events."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.support.comparing import ask, detokenized, level, same
from tests.support.requests import CHAT, TOOL, USER

pytestmark = pytest.mark.engine

TOOLS = {**CHAT, "tools": [TOOL], "max_tokens": 48}

CHATS: dict[str, dict[str, Any]] = {
    "plain": CHAT,
    "n": {**CHAT, "n": 2, "temperature": 1.0, "top_k": 1},
    "logprobs": {**CHAT, "logprobs": True},
    "top_logprobs": {**CHAT, "logprobs": True, "top_logprobs": 3},
    "top_logprobs alone": {**CHAT, "top_logprobs": 3},
    "ids": {**CHAT, "return_token_ids": True},
    "ids and logprobs": {**CHAT, "return_token_ids": True, "logprobs": True, "top_logprobs": 1},
    "ids refused": {**CHAT, "return_token_ids": False, "logprobs": False},
    "prompt logprobs": {**CHAT, "prompt_logprobs": 1},
    "tools": TOOLS,
    "tools, serial": {**TOOLS, "parallel_tool_calls": False},
    "tools, none": {**TOOLS, "tool_choice": "none"},
    "tools, required": {**TOOLS, "tool_choice": "required", "max_tokens": 200},
    "tools, named": {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "search"}}, "max_tokens": 200},
    "json": {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"day": {"enum": ["Mon", "Tue"]}}, "required": ["day"]}}}},
    "stop": {**CHAT, "stop": ["e"], "include_stop_str_in_output": True},
    "no reasoning": {**CHAT, "include_reasoning": False},
    "no reasoning, logprobs": {**CHAT, "include_reasoning": False, "logprobs": True},
    "unknown field": {**CHAT, "x_vendor": {"a": [1, None]}},
    "parts": {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]}]},
    "image": {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]}]},
    "echo": {**CHAT, "messages": [USER, {"role": "assistant", "content": "It is"}], "add_generation_prompt": False, "continue_final_message": True, "echo": True},
    "history": {**TOOLS, "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"keywords": "a"}'}}]}, {"role": "tool", "tool_call_id": "c1", "content": "mail 1"}]},
    "bad temperature": {**CHAT, "temperature": -1},
    "bad messages": {**CHAT, "messages": "hi"},
    "too long": {**CHAT, "messages": [{"role": "user", "content": "word " * 2000}]},
    "surrogate": {**CHAT, "messages": [{"role": "user", "content": "a\ud800b"}]},
    "1 MB": {**CHAT, "messages": [{"role": "user", "content": "word " * 210_000}]},
    "strict tools": {**TOOLS, "tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]},
    "empty tools": {**CHAT, "tools": []},
    "no reasoning, ids": {**CHAT, "include_reasoning": False, "return_token_ids": True},
    "no reasoning, serial": {**TOOLS, "include_reasoning": False, "parallel_tool_calls": False},
    "no reasoning, required": {**TOOLS, "include_reasoning": False, "tool_choice": "required", "max_tokens": 200},
    "ids, oddly": {**CHAT, "return_token_ids": 1},
    "ids, badly": {**CHAT, "return_token_ids": "maybe"},
    "NaN": {**CHAT, "temperature": float("nan")},
    "long integer": {**CHAT, "seed": 2**64},
    "no messages": {"max_tokens": 4},
    "n, all asked": {**CHAT, "n": 3, "temperature": 1.0, "top_k": 1, "logprobs": True, "top_logprobs": 1, "return_token_ids": True},
}  # fmt: skip
COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "The meeting is", "temperature": 0, "max_tokens": 8},
    "logprobs": {"prompt": "The meeting is", "temperature": 0, "max_tokens": 8, "logprobs": 2},
    "ids": {"prompt": "The meeting is", "temperature": 0, "max_tokens": 8, "return_token_ids": True},
    "echo": {"prompt": "The meeting is", "temperature": 0, "max_tokens": 8, "echo": True},
    "two prompts": {"prompt": ["a", "b"], "temperature": 0, "max_tokens": 4},
    "token prompt": {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 4},
    "two prompts, n": {"prompt": ["a", "b"], "n": 2, "temperature": 1.0, "top_k": 1, "max_tokens": 4},
    "surrogate": {"prompt": "a\ud800b", "temperature": 0, "max_tokens": 4},
    "unknown field": {"prompt": "a", "temperature": 0, "max_tokens": 4, "x_vendor": {"a": [1, None]}},
    "1 MB": {"prompt": "word " * 210_000, "max_tokens": 4},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", CHATS)
def test_chat(engine, proxy, name, stream):
    body = {**CHATS[name], "stream": True, "stream_options": {"include_usage": True}} if stream else CHATS[name]
    same(engine, proxy, "/v1/chat/completions", body)


def test_stream_without_usage_and_with_continuous_usage(engine, proxy):
    same(engine, proxy, "/v1/chat/completions", {**TOOLS, "stream": True})
    body = {
        **CHAT,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 1,
    }
    same(engine, proxy, "/v1/chat/completions", body)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(engine, proxy, name, stream):
    same(engine, proxy, "/v1/completions", {**COMPLETIONS[name], "stream": stream})


def test_unknown_model_and_no_model(engine, proxy):
    same(engine, proxy, "/v1/chat/completions", {**CHAT, "model": "nobody"})
    direct, through = (
        httpx.post(u + "/v1/chat/completions", json=CHAT, timeout=60, trust_env=False) for u in (engine.url, proxy.url)
    )
    assert (through.status_code, level(through.json())) == (direct.status_code, level(direct.json()))


def test_routes_that_are_passed_through(engine, proxy):
    for path, body in (
        ("/tokenize", {"prompt": "hi there"}),
        ("/detokenize", {"tokens": [5, 6]}),
        ("/v1/embeddings", {"input": "x"}),
    ):
        same(engine, proxy, path, body)
    direct, through = (httpx.get(u + "/version", timeout=60, trust_env=False) for u in (engine.url, proxy.url))
    assert through.json() == direct.json()
    listed = httpx.get(proxy.url + "/v1/models", timeout=60, trust_env=False).json()["data"]
    assert [m["id"] for m in listed] == ["inbox"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/sleep",
        "/v1/chat/completions/render",
        "/inference/v1/generate",
    ],
)
def test_the_engines_admin_routes_are_closed(proxy, path):
    assert httpx.post(proxy.url + path, json={}, timeout=60, trust_env=False).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/models"),
        ("OPTIONS", "/v1/messages"),
        ("HEAD", "/health"),
        ("PUT", "/nope"),
        ("GET", "/v1/models/inbox"),
        ("POST", "/v1/chat%2Fcompletions"),
        ("POST", "/v1//chat/completions"),
        ("POST", "/v1/chat/completions?api-version=2024-10-21"),
    ],
)
def test_routes_and_methods(engine, proxy, method, path):
    body = None if method != "POST" else {**CHAT, "model": "inbox", "max_tokens": 2}
    direct, through = (
        httpx.request(method, url + path, json=body, timeout=60, trust_env=False) for url in (engine.url, proxy.url)
    )
    assert through.status_code == direct.status_code and through.headers.get("allow") == direct.headers.get("allow")
    if method != "POST" or not direct.is_success:
        assert through.content == direct.content
    else:
        assert level(through.json()).keys() == level(direct.json()).keys()


def test_a_slash_at_the_end_leads_where_there_is_none(engine, proxy):
    asked = {**CHAT, "model": "inbox", "max_tokens": 2}
    for url in (engine.url, proxy.url):
        path = url + "/v1/chat/completions/"
        assert httpx.post(path, json=asked, timeout=60, trust_env=False).status_code == 307
        assert httpx.post(path, json=asked, timeout=60, trust_env=False, follow_redirects=True).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_recorded_is_what_was_sampled(engine, proxy, stream):
    """The record's ids are the engine's own, and detokenised they are the reply."""
    from slipstream_proxy.dialects import BY_NAME
    from slipstream_proxy.log.records import CallHead
    from slipstream_proxy.log.segments import list_segments, read_segment

    body = {**CHAT, "temperature": 1.0, "stream": stream}
    reply = ask(proxy.url, "/v1/chat/completions", body)
    call = reply.headers["x-slipstream-call"]
    frames = [
        f for _, p in list_segments(proxy.data_dir / "spool")["data0"] for f in read_segment(p) if f.head["id"] == call
    ]
    (frame,) = frames
    head = CallHead(**frame.head)
    read = BY_NAME["chat"].parse(frame.request, frame.reply, head)
    assert read.untrainable is None
    (choice,) = read.choices
    text = detokenized(engine, choice.completion_ids)
    assert text.startswith(choice.message["content"] or "") and len(choice.logprobs) == len(choice.completion_ids)
    asked = {"model": "inbox", "messages": CHAT["messages"], "add_generation_prompt": True}
    prompt = httpx.post(engine.url + "/tokenize", json=asked, timeout=60, trust_env=False).json()["tokens"]
    assert read.prompt_ids == prompt
