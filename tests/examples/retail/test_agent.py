"""The service agent with the real OpenAI Agents SDK, the real data plane, and an engine that plays the expert."""

from __future__ import annotations

import json
import random
import uuid
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from retail.agent import ServiceAgent
from retail.desk import MAX_CALLS, cases
from retail.domains import DOMAINS
from retail.players import EXPERT, Move, Servant
from tests.support.dataplane import Proxy, parsed
from tests.support.scripted import ScriptedEngine

from slipstream.config import Config

SOME = list(islice(cases("eval"), 12))


def spoken(move: Move, thing: str) -> dict[str, Any]:
    """A move as the engine's message. `thing`: what the record is of."""
    if not move.tool:
        return {"role": "assistant", "content": move.text}
    said = {"code": move.number} if move.tool == "customer" else {"id": move.number}
    if move.tool in ("order", "booking"):
        said = {"thing": thing, **said}
    function = {"name": move.tool, "arguments": json.dumps(said)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": uuid.uuid4().hex, "type": "function", "function": function}],
    }


def expert(body: dict[str, Any]) -> dict[str, Any]:
    """Goes through the conversation again, and says what the expert says next."""
    messages = body["messages"]
    case = next(c for c in SOME if c.domain.policy == messages[0]["content"])
    servant, move = Servant(EXPERT, case, random.Random(0)), Move()
    for message in messages[1:]:
        if message["role"] == "assistant":
            move = servant.move()
            assert message.get("content") == (move.text or None)
        elif message["role"] == "user":
            servant.hear(message["content"])
        else:
            servant.see(move.tool, move.number, message["content"])
    return spoken(servant.move(), servant.thing)


@pytest.fixture
async def engine():
    made = await ScriptedEngine(expert).start()
    yield made
    await made.stop()


@pytest.fixture
async def proxy(tmp_path: Path, engine: ScriptedEngine):
    config = Config(
        data_dir=str(tmp_path),
        engine={"urls": [engine.url], "name": "model", "kind": "vllm"},
        proxy={"durability": "process"},
    )
    made = await Proxy(config).start()
    yield made
    await made.stop()


async def served(url: str, some=SOME, **how: Any):
    agent = ServiceAgent(f"{url}/v1")
    try:
        return [await agent.episode(case, **how) for case in some]
    finally:
        await agent.close()


async def test_with_the_experts_words_every_customer_is_served_right(proxy: Proxy, engine: ScriptedEngine) -> None:
    played = await served(proxy.url, split="eval", tagged=False)
    assert [p.reward for p in played] == [1.0] * len(SOME)
    assert sum(p.calls for p in played) == len(engine.seen)


async def test_a_tagged_run_names_itself_in_every_call_and_posts_its_reward(engine: ScriptedEngine) -> None:
    posts = []
    engine.script = lambda body: {"role": "assistant", "content": "done"}
    agent = ServiceAgent(f"{engine.url}/v1")

    async def note(path: str, json: Any):
        posts.append((path, json))
        return await real(path, json=json)

    real, agent.http.post = agent.http.post, note  # the wire is looked at, and the call is made
    played = await agent.episode(SOME[0], split="train")
    await agent.close()
    assert played.reward == 0.0, "nothing was done"
    [(body, headers)] = engine.seen
    assert headers["x-slipstream-task"] == SOME[0].id
    assert headers["x-slipstream-split"] == "train"
    episode = headers["x-slipstream-episode"]
    assert posts == [(f"{engine.url}/slipstream/v1/episodes/{episode}/rewards", {"value": 0.0})]
    assert set(body) <= {"model", "messages", "tools", "max_tokens", "stream"}, "the SDK's defaults"
    assert [t["function"]["name"] for t in body["tools"]] == [
        "customer",
        SOME[0].domain.record,
        *SOME[0].domain.actions,
    ]


async def test_an_untagged_run_says_nothing(engine: ScriptedEngine) -> None:
    await served(engine.url, SOME[:1], tagged=False)
    assert engine.seen
    assert not [name for _, headers in engine.seen for name in headers if name.lower().startswith("x-slipstream")]


async def test_calls_through_the_proxy_can_be_trained_on(proxy: Proxy, engine: ScriptedEngine) -> None:
    await served(proxy.url, SOME[:2], tagged=False)
    frames = await proxy.record(len(engine.seen))
    assert {parsed(frame)[1].untrainable for frame in frames} == {None}


@pytest.mark.parametrize("what", ["babble", "stranger", "loops"])
async def test_a_model_that_goes_wrong_earns_nothing_and_fails_nothing(engine: ScriptedEngine, what: str) -> None:
    moves = {"babble": Move("hm"), "stranger": Move(tool="fly", number=1), "loops": Move(tool="customer", number=1)}
    engine.script = lambda body: spoken(moves[what], SOME[0].wishes[0].thing)
    [played] = await served(engine.url, SOME[:1], tagged=False)
    assert played.reward == 0.0
    assert 1 <= played.calls <= MAX_CALLS


def test_both_companies_have_an_agent() -> None:
    assert ServiceAgent("http://127.0.0.1:1/v1").agents.keys() == DOMAINS.keys()
