"""What each framework sends by default (docs/frameworks.md, recorded from its own client), and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.dataplane import ASK, parsed, post
from tests.support.scripted import ScriptedEngine

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("frameworks.json").read_text())
"""Row of the page's table → six calls of one run, as that client sent them to a model that thinks and calls two tools at
once: the fields beside model and messages, all messages, which of them each call sent, and the engine's replies."""
PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
FUNCTION = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
STRICT = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "Out", "schema": {"type": "object"}, "strict": True}}
STOPS = ["Observation:", "Calling tools:"]
ONE = {"type": "function", "function": {"name": "add"}}
SENT: dict[str, dict[str, Any]] = {
    "openai 3.57": {},
    "pydantic-ai 2.68": {"stream": False, "tools": STRICT, "tool_choice": "auto"},
    "pydantic-ai with an `output_type`": {"stream": False, "tools": STRICT, "tool_choice": "required"},
    "LangGraph 1.2, langchain-openai 1.7": {"stream": False, "tools": TOOLS},
    "LangChain `with_structured_output`": {"stream": False, "response_format": SCHEMA},
    "OpenAI Agents 0.24, chat completions": {"tools": STRICT},
    "OpenAI Agents with an `output_type`": {"response_format": SCHEMA},
    "CrewAI 1.15": {"tools": STRICT, "tool_choice": "auto"},
    "AutoGen 0.7 (autogen-agentchat)": {"stream": False, "tools": TOOLS, "tool_choice": "auto"},
    "AG2 1.2": {"stream": False, "tools": TOOLS},
    "Agno 3.1, `OpenAILike`": {"tools": TOOLS},
    "Agno 3.1, `VLLM`": {"tools": TOOLS, "presence_penalty": 1.5, "temperature": 0.7, "top_p": 0.8},
    "smolagents 1.26, `CodeAgent`": {"stop": [*STOPS, "</code>"]},
    "smolagents 1.26, `ToolCallingAgent`": {"stop": STOPS, "tools": TOOLS, "tool_choice": "required"},
    "instructor 1.17": {"tools": TOOLS, "tool_choice": ONE},
    "instructor 1.17, `Mode.MD_JSON`": {},
    "DSPy 3.4, ReAct too": {},
    "DSPy 3.4, asking again after a reply that it couldn't read": {"response_format": {"type": "json_object"}},
    "Vercel AI SDK 6.0, 7.0": {"tools": TOOLS, "tool_choice": "auto"},
    "Vercel AI SDK, `generateObject`": {"response_format": {"type": "json_object"}},
    "LiteLLM 1.110 (`openai/…`, `hosted_vllm/…`)": {},
    "`llm` 0.36": {"stream": True, "stream_options": {"include_usage": True}},
    **{name: recorded["sent"] for name, recorded in RECORDED.items()},
}
"""Row of the page's table → the fields that the framework sent beside model and messages."""
ANTHROPIC = "anthropic 2.14"
RESPONSES = "OpenAI Agents 0.24, responses (its default)"
IN_TABLE = "## What can be trained on"
NAMED = (
    "pydantic-ai", "LangGraph", "OpenAI Agents", "CrewAI", "AutoGen", "AG2", "Agno", "smolagents", "instructor", "DSPy",
    "Vercel AI SDK", "LiteLLM", "`llm`", "openai for Node", "LangChain.js", "Mastra", "Strands", "LlamaIndex", "Google ADK",
    "Agent Framework",
)  # fmt: skip


def row(name: str) -> list[str]:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_row_was_tried_and_every_framework_has_a_section():
    table = PAGE.split(IN_TABLE)[1].split("\n\n")[1].splitlines()[2:]
    assert {line.split("|")[1].strip() for line in table} == {*SENT, ANTHROPIC, RESPONSES}
    sections = [line for line in PAGE.splitlines() if line.startswith("## ")]
    for name in NAMED:
        assert any(name in line for line in table) and any(name in line for line in sections), name


@pytest.mark.parametrize("name", SENT)
async def test_the_page_says_what_the_proxy_says(start, fake, name):
    proxy = await start()
    status, headers, _ = await post(proxy.url, {**ASK, **SENT[name]})
    said = row(name)[2]
    expected = "yes" if said == "yes" else f"no; {said.removeprefix('**no: ').removesuffix('**').split(',')[0]}"
    assert (status, headers["x-slipstream-trainable"]) == (200, expected)


async def test_langgraph_sends_what_the_page_says(start, fake):
    """Live: the framework's own client, as the page shows it."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph

    proxy = await start()
    tags = {"x-slipstream-episode": "e1", "x-slipstream-task": "book-a-flight"}
    llm = ChatOpenAI(base_url=f"{proxy.url}/v1", api_key="none", model=ASK["model"], default_headers=tags)

    async def think(state: MessagesState) -> dict:
        return {"messages": [await llm.bind_tools(TOOLS).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    graph.add_edge("think", END)
    reply = (await graph.compile().ainvoke({"messages": [("user", "hi")]}))["messages"][-1]  # type: ignore[call-overload]
    assert reply.content
    (frame,) = await proxy.record(1)
    assert (frame.head["episode"], frame.head["task"]) == ("e1", "book-a-flight")
    sent = set(fake.seen[0][0]) - {"return_token_ids", "logprobs"}
    assert sent == {"model", "messages", *SENT["LangGraph 1.2, langchain-openai 1.7"]}


async def test_anthropics_client_sends_what_the_page_says(start, fake):
    """The messages format: the proxy asks the engine for a chat completion."""
    from anthropic import AsyncAnthropic

    proxy = await start()
    client = AsyncAnthropic(base_url=proxy.url, api_key="none", default_headers={"x-slipstream-episode": "e5"})
    reply = await client.messages.create(model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hi"}])
    assert reply.content
    (frame,) = await proxy.record(1)
    assert (frame.head["episode"], frame.head["dialect"]) == ("e5", "messages")
    assert row(ANTHROPIC)[2] == "yes" and parsed(frame)[1].untrainable is None


async def test_openai_agents_send_what_the_page_says(start, fake):
    """Its default, the responses format: the proxy asks the engine for a chat completion."""
    from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def add(a: int) -> int:
        return a

    proxy = await start()
    tags = {"x-slipstream-episode": "e3", "x-slipstream-task": "t"}
    model = OpenAIResponsesModel("tiny", AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none"))
    config = RunConfig(model_settings=ModelSettings(extra_headers=tags), tracing_disabled=True)
    result = await Runner.run(Agent(name="a", tools=[add], model=model), "hi", run_config=config)
    assert result.final_output
    (frame,) = await proxy.record(1)
    assert (frame.head["episode"], frame.head["dialect"]) == ("e3", "responses")
    assert row(RESPONSES)[2] == "yes" and parsed(frame)[1].untrainable is None


async def test_litellm_sends_what_the_page_says(start, fake):
    import litellm

    proxy = await start()
    tags = {"x-slipstream-episode": "e2", "x-slipstream-task": "t"}
    for provider in ("hosted_vllm", "openai"):
        await litellm.acompletion(
            f"{provider}/{ASK['model']}",
            ASK["messages"],
            api_base=f"{proxy.url}/v1",
            api_key="none",
            extra_headers=tags,
        )
    frames = await proxy.record(2)
    assert [frame.head["episode"] for frame in frames] == ["e2", "e2"]
    assert all(set(body) - {"return_token_ids", "logprobs"} == {"model", "messages"} for body, _ in fake.seen)


@pytest.mark.parametrize("name", RECORDED)
async def test_untagged_runs_side_by_side_are_an_episode_each(start, name):
    """Whatever the client makes of the replies in its history: two runs that say the same, but for ids of tool calls."""
    recorded = RECORDED[name]

    def of_run(value: Any, run: str) -> Any:
        return json.loads(json.dumps(value).replace("call-", f"call-{run}-"))

    def script(body: dict[str, Any]) -> dict[str, Any]:
        number = [len(call) for call in recorded["calls"]].index(len(body["messages"]))
        return of_run(recorded["replies"][number], body["user"])

    engine = await ScriptedEngine(script).start()
    try:
        proxy = await start(engine={"urls": [engine.url], "name": "model"})
        seen: dict[str, list[str]] = {"a": [], "b": []}
        for call in recorded["calls"]:
            messages = [recorded["messages"][i] for i in call]
            for run, episodes in seen.items():
                body = {"model": "model", "user": run, "messages": of_run(messages, run), **recorded["sent"]}
                status, headers, _ = await post(proxy.url, body)
                assert (status, headers["x-slipstream-trainable"]) == (200, "yes")
                episodes.append(headers["x-slipstream-episode"])
        assert len(set(seen["a"])) == len(set(seen["b"])) == 1
        assert seen["a"] != seen["b"]
        frames = await proxy.record(12)
        assert not [reason for frame in frames if (reason := parsed(frame)[1].untrainable)]
    finally:
        await engine.stop()
