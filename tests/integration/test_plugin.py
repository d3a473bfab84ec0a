"""With the engine plugin and without it: the client gets the same, and the record is the same."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.support import vllm
from tests.support.comparing import ask, level, same
from tests.support.requests import CHAT, TOOL, USER
from tests.support.running import Running, frame_of, run_proxy, spooled

pytestmark = pytest.mark.engine

PATHS = {
    "chat": "/v1/chat/completions",
    "text": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
TOOLS = {**CHAT, "tools": [TOOL], "max_tokens": 48}
SCHEMA = {"type": "object", "properties": {"day": {"enum": ["Mon", "Tue"]}}, "required": ["day"]}
SAY: dict[str, Any] = {"messages": [USER], "temperature": 0, "max_tokens": 24}
SAY_TOOLS = {**SAY, "tools": [{"name": "search", "input_schema": TOOL["function"]["parameters"]}], "max_tokens": 48}
INPUT: dict[str, Any] = {"input": USER["content"], "temperature": 0, "max_output_tokens": 24}
CASES: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "chat, n": {**CHAT, "n": 2, "temperature": 1.0, "top_k": 1},
    "chat, logprobs": {**CHAT, "logprobs": True, "top_logprobs": 2},
    "chat, ids": {**CHAT, "return_token_ids": True},
    "chat, tools": TOOLS,
    "chat, required": {**TOOLS, "tool_choice": "required", "max_tokens": 200},
    "chat, json": {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    "chat, stop": {**CHAT, "stop": ["e"], "include_stop_str_in_output": True},
    "chat, no reasoning": {**CHAT, "include_reasoning": False},
    "text": {"prompt": "The meeting is", "temperature": 0, "max_tokens": 8},
    "text, logprobs": {"prompt": "The meeting is", "temperature": 0, "max_tokens": 8, "logprobs": 2},
    "text, echo": {"prompt": "The meeting is", "temperature": 0, "max_tokens": 8, "echo": True},
    "messages": SAY,
    "messages, tools": SAY_TOOLS,
    "responses": INPUT,
    "responses, tools": {**INPUT, "tools": [{"type": "function", **TOOL["function"]}], "max_output_tokens": 48},
}  # fmt: skip
EACH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Running]]:
    """An engine without the plugin, and a proxy in front of it."""
    folder = tmp_path_factory.mktemp("bare")
    with vllm(folder / "engine.log", plugin=False) as url, run_proxy(folder, url) as running:
        yield SimpleNamespace(url=url), running


def asked(name: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    return PATHS[name.partition(",")[0]], {**CASES[name], **({"stream": True} if stream else {})}


def test_one_engine_has_it_and_the_other_has_not(engine, bare) -> None:
    assert [httpx.get(f"{e.url}/slipstream", trust_env=False).status_code for e in (engine, bare[0])] == [200, 404]


@EACH
@pytest.mark.parametrize("name", CASES)
def test_without_it_the_client_gets_what_the_engine_says(bare, name, stream) -> None:
    """The suites test_conformance*.py say the same of an engine that has it."""
    engine, proxy = bare
    path, body = asked(name, stream=stream)
    same(engine, proxy, path, body)


def gist(proxy: Running, path: str, body: dict[str, Any]) -> Any:
    """All that a record says of what was sampled."""
    reply = ask(proxy.url, path, body)
    assert reply.status_code == 200, reply.text
    head, read = spooled(proxy, reply.headers["x-slipstream-call"])
    choices = [
        (
            json.dumps(level(c.message), sort_keys=True),
            c.finish_reason,
            c.stop,
            c.completion_ids,
            struct.pack(f"{len(c.logprobs)}f", *c.logprobs),
        )
        for c in read.choices
    ]
    return head.outcome, head.note, read.untrainable, read.messages, read.tools, read.sampling, read.prompt_ids, choices


@EACH
@pytest.mark.parametrize("name", CASES)
def test_the_record_is_the_same(bare, proxy, name, stream) -> None:
    path, body = asked(name, stream=stream)
    for _ in range(4):  # a sum, and with it a token, may come out otherwise when the engine's batch or cache differ
        with_it, without = gist(proxy, path, body), gist(bare[1], path, body)
        if with_it == without:
            break
    assert with_it == without
    assert with_it[6] or "echo" in name


LONG = "Mon: a meeting with Ann at nine, then lunch with Bob. " * 6


def turns(form: str, count: int) -> Iterator[dict[str, Any]]:
    """Requests of a conversation that goes on."""
    said: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
    name, limit = ("input", "max_output_tokens") if form == "responses" else ("messages", "max_tokens")
    for n in range(count):
        yield {name: list(said), limit: 8, "temperature": 1.0}
        said += [{"role": "assistant", "content": f"Well, {n}."}, {"role": "user", "content": f"And on day {n}?"}]


@EACH
@pytest.mark.parametrize("form", ["chat", "messages", "responses"])
def test_the_engine_sends_the_ids_of_a_conversation_once(engine, proxy, form, stream) -> None:
    """What it leaves out is in the record all the same: the prompt's ids are those that vLLM renders."""
    episode = {"x-slipstream-episode": f"once-{form}-{stream}"}
    for n, body in enumerate(turns(form, 4)):
        body = {**body, "stream": True} if stream else body
        reply = ask(proxy.url, PATHS[form], body, **episode)
        assert reply.status_code == 200, reply.text
        _, read = spooled(proxy, reply.headers["x-slipstream-call"])
        rendered = ask(engine.url, f"{PATHS[form]}/render", body | {"stream": False})
        assert read.prompt_ids == rendered.json()["token_ids"] and read.untrainable is None
        sent = json.loads(frame_of(proxy, reply.headers["x-slipstream-call"]).request)
        named = sent["slipstream_capture"]["prefixes"]
        assert len(named) == (n > 0)
        if named:
            assert left_out_of(engine, sent["messages"], named) == named[0][0] > 60
            assert left_out_of(engine, [*sent["messages"][:-1], USER], named) == named[0][0]
            assert left_out_of(engine, [{"role": "user", "content": f"x{LONG}"}], named) == 0


def left_out_of(engine: Any, messages: list[Any], named: list[Any]) -> int:
    """How many of the prompt's ids the engine leaves out of its reply to this."""
    body = {"messages": messages, "max_tokens": 1, "slipstream_capture": {"prefixes": named}}
    read = ask(engine.url, PATHS["chat"], body).json()
    return int(read["slipstream"]["p"][0][2])
