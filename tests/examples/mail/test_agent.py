"""The research agent with Anthropic's real SDK, the real data plane, and an engine that plays the expert."""

from __future__ import annotations

import random
import re
import uuid
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from mail.agent import ResearchAgent
from mail.mailbox import NOTES, READER, SYSTEM, Question, questions
from mail.players import EXPERT, Researcher
from tests.support.dataplane import Proxy, parsed
from tests.support.scripted import ScriptedEngine

from slipstream.config import Config

SOME = list(islice(questions("eval"), 10))


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def called(move: tuple[str, str]) -> dict[str, Any]:
    function = {"name": move[0], "arguments": move[1]}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": uuid.uuid4().hex, "type": "function", "function": function}],
    }


def expert(body: dict[str, Any]) -> dict[str, Any]:
    """Goes through the conversation again, and says what the expert says next."""
    system, first, *rest = [(m["role"], text_of(m.get("content") or "")) for m in body["messages"]]
    if system[1] == READER:
        mind = Researcher(EXPERT, SOME[0], random.Random(0))
        return {"role": "assistant", "content": mind.report(first[1])}
    assert system == ("system", SYSTEM)
    asked, _, notes = first[1].partition(". notes: ")
    question = next(q for q in SOME if q.text == asked)
    mind = Researcher(EXPERT, question, random.Random(0))
    if notes and notes != "nothing":
        mind.told(notes)
    move = ("", "")
    for role, content in rest:
        if role == "assistant":
            move = mind.move()
        elif role == "tool":
            mind.listing(content) if move[0] == "search" else mind.told(content)
    if rest and rest[-1][1] == NOTES:
        return {"role": "assistant", "content": mind.note((question.thing, question.name))}
    return called(mind.move())


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


async def answered(url: str, some: list[Question] = SOME, **how: Any):
    agent = ResearchAgent(f"{url}/v1")
    try:
        return [await agent.episode(question, **how) for question in some]
    finally:
        await agent.close()


async def test_with_the_experts_words_every_question_is_answered(proxy: Proxy, engine: ScriptedEngine) -> None:
    played = await answered(proxy.url, tagged=False)
    assert [p.reward for p in played] == [1.0] * len(SOME)
    assert sum(p.calls for p in played) == len(engine.seen)
    firsts = [body["messages"][0]["content"] for body, _ in engine.seen]
    assert set(firsts) == {SYSTEM, READER}, "a sub-agent reads the mails"
    compacted = [body for body, _ in engine.seen if ". notes: " in text_of(body["messages"][1]["content"])]
    assert compacted, "notes took the place of the history"


async def test_calls_through_the_proxy_can_be_trained_on(proxy: Proxy, engine: ScriptedEngine) -> None:
    await answered(proxy.url, SOME[:4], tagged=False)
    frames = await proxy.record(len(engine.seen))
    assert {parsed(frame)[1].untrainable for frame in frames} == {None}


class Relayed:
    """What an agent posts over HTTP besides its calls."""

    def __init__(self, agent: ResearchAgent) -> None:
        self.real, self.posts = agent.http.post, []
        agent.http.post = self.post

    async def post(self, path: str, json: Any):
        self.posts.append((path, json))
        return await self.real(path, json=json)


@pytest.mark.parametrize(("post_reward", "last"), [(True, ("rewards", {"value": 0.0})), (False, ("done", {}))])
async def test_all_calls_of_a_run_carry_one_episode(
    proxy: Proxy, engine: ScriptedEngine, post_reward: bool, last: tuple[str, Any]
) -> None:
    engine.script = lambda body: (
        {"role": "assistant", "content": "nothing"}
        if READER in str(body["messages"][0]) or NOTES in str(body["messages"][-1])
        else called(("read", '{"hit": 1}') if len(body["messages"]) == 4 else ("search", '{"keywords": "the"}'))
    )
    agent = ResearchAgent(proxy.url)
    agent.http.base_url = engine.url
    relayed = Relayed(agent)
    agent.url = engine.url  # which knows no rewards: the agent does not mind
    await agent.episode(SOME[0], split="eval", post_reward=post_reward)
    await agent.close()
    heads = [parsed(frame)[0] for frame in await proxy.record(len(engine.seen))]
    assert {(h.task, h.split, h.origin) for h in heads} == {(SOME[0].id, "eval", "header")}
    [episode] = {h.episode for h in heads}
    assert len(heads) > 10, "eight calls, two notes, and readers"
    assert relayed.posts == [(f"{engine.url}/slipstream/v1/episodes/{episode}/{last[0]}", last[1])]


async def test_an_untagged_run_says_nothing(engine: ScriptedEngine, proxy: Proxy) -> None:
    await answered(proxy.url, SOME[:1], tagged=False)
    heads = [parsed(frame)[0] for frame in await proxy.record(len(engine.seen))]
    assert {h.task for h in heads} == {None}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "hm"},
        called(("fly", '{"to": "oslo"}')),
        called(("read", '{"hit": 9}')),
        called(("answer", "{}")),
    ],
)
async def test_a_model_that_goes_wrong_earns_nothing_and_fails_nothing(
    proxy: Proxy, engine: ScriptedEngine, message: dict[str, Any]
) -> None:
    engine.script = lambda body: message
    [played] = await answered(proxy.url, SOME[:1], tagged=False)
    assert played.reward == 0.0
    assert played.calls >= 1


def test_the_questions_here_are_told_apart_by_their_words() -> None:
    assert len({q.text for q in SOME}) == len(SOME)
    assert all(re.fullmatch(r"[a-z ]+", q.text) for q in SOME)
