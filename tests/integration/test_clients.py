"""Clients that we did not write, against the real engine through the proxy: each call is answered and recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.load import QUESTION, TOOLS
from tests.support.running import recorded

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ASK: Any = [{"role": "system", "content": "find the mail"}, {"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def proxy(client_proxy):
    return client_proxy


def trainable(url: str, episode: str, tokens: int) -> None:
    """Its one call was recorded with its ids and log-probabilities."""
    call = recorded(url, episode).call_list[0]
    assert call.trainable, call.untrainable_reason
    assert call.prompt_ids
    assert len(call.completion_ids[0]) == len(call.logprobs[0]) == tokens


def tags(episode: str) -> dict[str, str]:
    return {"x-slipstream-episode": episode, "x-slipstream-task": "clients"}


def test_openai_sync_with_tools(proxy) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="any")
    raw = client.chat.completions.with_raw_response.create(
        model="gpt-4o-mini", messages=ASK, tools=TOOLS, max_tokens=12, extra_headers=tags("openai-sync")
    )
    assert raw.headers["x-slipstream-episode"] == "openai-sync"
    reply = raw.parse()
    assert reply.model == "gpt-4o-mini"
    assert reply.choices[0].finish_reason in {"stop", "tool_calls", "length"}
    call = recorded(proxy.url, "openai-sync").call_list[0]
    assert call.trainable, call.untrainable_reason
    assert len(call.completion_ids[0]) == len(call.logprobs[0]) == reply.usage.completion_tokens
    assert len(call.prompt_ids) == reply.usage.prompt_tokens
    assert getattr(reply, "prompt_token_ids", None) is None  # the bare engine says null, not ids


def test_openai_stream_and_async(proxy) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="any")
    events = list(
        client.chat.completions.create(
            model="inbox",
            messages=ASK,
            tools=TOOLS,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=tags("openai-stream"),
        )
    )
    assert events[-1].usage.completion_tokens > 0
    assert (
        len(recorded(proxy.url, "openai-stream").call_list[0].completion_ids[0]) == events[-1].usage.completion_tokens
    )

    async def many() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="any") as aclient:
            replies = await asyncio.gather(
                *(
                    aclient.chat.completions.create(
                        model="inbox", messages=ASK, tools=TOOLS, max_tokens=8, extra_headers=tags(f"async-{i}")
                    )
                    for i in range(8)
                )
            )
        return [r.id for r in replies]

    assert len(set(asyncio.run(many()))) == 8
    recorded(proxy.url, "async-7")


def test_openai_completions_parse_n_and_errors(proxy) -> None:
    import openai
    from pydantic import BaseModel

    class Day(BaseModel):
        day: str

    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="any", max_retries=0)
    text = client.completions.create(
        model="inbox", prompt="the dentist for dana is", max_tokens=4, extra_headers=tags("openai-text")
    )
    assert text.usage.completion_tokens >= 1
    assert recorded(proxy.url, "openai-text").call_list[0].prompt_ids
    reply = client.chat.completions.create(
        model="inbox", messages=ASK, n=3, max_tokens=6, extra_headers=tags("openai-n")
    )
    assert [c.index for c in reply.choices] == [0, 1, 2]
    assert len(recorded(proxy.url, "openai-n").call_list[0].completion_ids) == 3
    try:
        client.chat.completions.parse(
            model="inbox", messages=ASK, response_format=Day, max_tokens=40, extra_headers=tags("openai-parse")
        )
    except (openai.LengthFinishReasonError, ValueError):
        pass  # the small model need not finish its JSON
    call = recorded(proxy.url, "openai-parse").call_list[0]
    assert not call.trainable
    assert "structured" in call.untrainable_reason or "response_format" in call.untrainable_reason
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=ASK)
    odd = client.chat.completions.with_raw_response.create(
        model="inbox", messages=ASK, max_tokens=4, extra_headers={"x-slipstream-episode": "any text!"}
    )
    assert odd.headers["x-slipstream-episode"].startswith("any")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="inbox", messages=ASK, max_tokens=100_000)


def test_a_base_url_alone_names_task_and_episode(proxy) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{proxy.url}/t/by-path/e/path-1/v1", api_key="any")
    client.chat.completions.create(model="inbox", messages=ASK, tools=TOOLS, max_tokens=8)
    assert recorded(proxy.url, "path-1").task == "by-path"


def test_openai_responses(proxy) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="any")
    reply = client.responses.create(model="inbox", input=QUESTION, max_output_tokens=8, extra_headers=tags("responses"))
    assert reply.status in {"completed", "incomplete"}
    trainable(proxy.url, "responses", reply.usage.output_tokens)
    with client.responses.stream(
        model="inbox", input=QUESTION, max_output_tokens=8, extra_headers=tags("responses-stream")
    ) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    trainable(proxy.url, "responses-stream", stream.get_final_response().usage.output_tokens)


def test_anthropic(proxy) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=proxy.url, api_key="any")
    message = client.messages.create(
        model="claude-x",
        max_tokens=8,
        messages=[{"role": "user", "content": QUESTION}],
        extra_headers=tags("anthropic"),
    )
    assert message.role == "assistant"
    assert message.model == "claude-x"
    trainable(proxy.url, "anthropic", message.usage.output_tokens)
    with client.messages.stream(
        model="claude-x",
        max_tokens=8,
        messages=[{"role": "user", "content": QUESTION}],
        extra_headers=tags("anthropic-stream"),
    ) as stream:
        assert stream.get_final_message().stop_reason
    trainable(proxy.url, "anthropic-stream", stream.get_final_message().usage.output_tokens)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="no-such-model", max_tokens=8, messages=[{"role": "user", "content": "x"}])


def test_langchain(proxy) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="inbox", base_url=f"{proxy.url}/v1", api_key="any", max_tokens=8, default_headers=tags("langchain")
    )
    assert model.bind_tools(TOOLS).invoke([("system", "find the mail"), ("user", QUESTION)]).response_metadata
    assert list(model.stream(QUESTION))
    recorded(proxy.url, "langchain", 2)


def test_openai_agents(proxy) -> None:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, set_tracing_disabled
    from agents.exceptions import AgentsException
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="any", default_headers=tags("agents"))
    agent = Agent(
        name="inbox",
        instructions="find the mail",
        model=OpenAIChatCompletionsModel("inbox", client),
        model_settings=ModelSettings(max_tokens=8),
    )
    try:
        Runner.run_sync(agent, QUESTION, max_turns=2, run_config=RunConfig(tracing_disabled=True))
    except AgentsException:
        pass  # the small model may call a tool that this agent does not have
    recorded(proxy.url, "agents")


def test_openai_agents_with_responses_and_tools(proxy) -> None:
    from agents import (
        Agent,
        ModelSettings,
        OpenAIResponsesModel,
        RunConfig,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from agents.exceptions import AgentsException
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool
    def search(keywords: str) -> str:
        """Find mails."""
        return f"no mail about {keywords}"

    def agent(episode: str) -> Agent:
        client = AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="any", default_headers=tags(episode))
        model, settings = OpenAIResponsesModel("inbox", client), ModelSettings(max_tokens=24)
        return Agent(name="inbox", instructions="find the mail", tools=[search], model=model, model_settings=settings)

    async def streamed() -> None:
        result = Runner.run_streamed(agent("agents-responses-stream"), QUESTION, max_turns=2, run_config=config)
        async for _ in result.stream_events():
            pass

    config = RunConfig(tracing_disabled=True)
    with contextlib.suppress(
        AgentsException
    ):  # the small model may go on calling tools, or call one that this agent does not have
        Runner.run_sync(agent("agents-responses"), QUESTION, max_turns=2, run_config=config)
    with contextlib.suppress(AgentsException):
        asyncio.run(streamed())
    for episode in ("agents-responses", "agents-responses-stream"):
        call = recorded(proxy.url, episode).call_list[0]
        assert call.trainable, call.untrainable_reason
        assert len(call.completion_ids[0]) == len(call.logprobs[0]) > 0


def test_langchain_with_responses(proxy) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="inbox", base_url=f"{proxy.url}/v1", api_key="any", max_tokens=8, default_headers=tags("langchain-responses"), use_responses_api=True
    )  # fmt: skip
    assert model.invoke([("system", "find the mail"), ("user", QUESTION)]).response_metadata
    assert list(model.stream(QUESTION))
    found = recorded(proxy.url, "langchain-responses", 2)
    assert all(c.trainable for c in found.call_list), [c.untrainable_reason for c in found.call_list]


def test_litellm(proxy) -> None:
    import litellm

    reply = litellm.completion(
        model="openai/inbox",
        api_base=f"{proxy.url}/v1",
        api_key="any",
        messages=ASK,
        max_tokens=8,
        extra_headers=tags("litellm"),
    )
    assert reply.usage.completion_tokens >= 1
    recorded(proxy.url, "litellm")


def test_curl(proxy, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    assert curl, "curl is not installed"
    (tmp_path / "body.json").write_text(
        json.dumps({"model": "inbox", "messages": ASK, "max_tokens": 8, "stream": True})
    )
    headers = [x for k, v in tags("curl").items() for x in ("-H", f"{k}: {v}")]
    url = f"{proxy.url}/v1/chat/completions"
    for version in ("--http1.1", "--http1.0"):
        ran = subprocess.run(
            [curl, "-sSN", version, "-H", "content-type: application/json", *headers, "--data-binary", f"@{tmp_path}/body.json", url],
            capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "no_proxy": "127.0.0.1"},
        )  # fmt: skip
        assert ran.stdout.rstrip().endswith("data: [DONE]"), ran.stdout + ran.stderr
    recorded(proxy.url, "curl", 2)


def test_eight_untagged_runs_of_one_prompt_are_eight_episodes(proxy) -> None:
    """Each goes on with its own tool call's id, or with its own history."""

    async def run(client: httpx.AsyncClient) -> set[str]:
        messages = [*ASK]
        seen = set()
        for turn in range(3):
            reply = await client.post(
                f"{proxy.url}/v1/chat/completions",
                json={"model": "inbox", "messages": messages, "tools": TOOLS, "max_tokens": 12},
            )
            seen.add(reply.headers["x-slipstream-episode"])
            message = reply.json()["choices"][0]["message"]
            calls = message.get("tool_calls") or []
            messages.append(
                {"role": "assistant", "content": message.get("content"), **({"tool_calls": calls} if calls else {})}
            )
            messages += [{"role": "tool", "tool_call_id": c["id"], "content": f"no mail {turn}"} for c in calls]
            if not calls:
                messages.append({"role": "user", "content": f"go on {turn}"})
        return seen

    async def eight() -> list[set[str]]:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            return await asyncio.gather(*(run(client) for _ in range(8)))

    seen = asyncio.run(eight())
    assert all(len(s) == 1 for s in seen), f"a run was split: {seen}"
    # replies without a tool call may be equal word for word; then nothing tells their runs apart
    assert len(set().union(*seen)) >= 6
