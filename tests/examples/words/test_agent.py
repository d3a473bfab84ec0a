"""The Node agent, with the Vercel AI SDK, against an endpoint that speaks the OpenAI protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from common.task import Missing, Played
from tests.support.served import Served
from words import task as words_task
from words.game import GUESSES, Item, answer, make_items, pairs
from words.players import expert_guess
from words.task import TASK

FOLDER = Path(words_task.__file__).parent
INSTALLED = shutil.which("node") is not None and (FOLDER / "node_modules" / "ai").is_dir()
needs_node = pytest.mark.skipif(not INSTALLED, reason="the agent is not installed: npm ci --prefix examples/words")


class Endpoint:
    """Guesses as the expert does and says that it is done, or acts as `acts` says. Keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.posts: list[tuple[str, str, Any]] = []
        self.acts = "expert"
        self.plain = False

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/slipstream/v1/episodes/{episode}/{what}", self.post)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((dict(request.headers), body))
        if self.acts == "down":
            return web.json_response({"error": {"message": "no engine"}}, status=400)
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        choice = {"index": 0, "message": self.message(body), "finish_reason": "stop"}
        return web.json_response(
            {**head, "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        )

    def message(self, body: dict[str, Any]) -> dict[str, Any]:
        question, *turns = body["messages"]
        kind = "word" if "Find the word" in question["content"] else "number"
        rest = question["content"].partition("The first guess was ")[2]
        told = [(rest.split(" ")[0], rest.partition(" ")[2])]
        for said, heard in zip(turns[::2], turns[1::2], strict=True):
            arguments = json.loads(said["tool_calls"][0]["function"]["arguments"])
            told.append((str(arguments.get(kind)), heard["content"]))
        over = told[-1][1] == "right" or told[-1][1].startswith("no guesses left")
        if over or self.acts == "talk":
            return {"role": "assistant", "content": "done"}
        mine = expert_guess(kind, told) if self.acts == "expert" else rest.split(" ")[0]
        arguments = {kind: int(mine) if kind == "number" else mine}
        if self.acts == "broken":
            arguments = {"letter": "x"}
        call = {
            "id": f"call-{len(self.calls)}",
            "type": "function",
            "function": {"name": "guess", "arguments": json.dumps(arguments)},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    async def post(self, request: web.Request) -> web.Response:
        if self.plain:
            raise web.HTTPNotFound
        self.posts.append((request.match_info["episode"], request.match_info["what"], await request.json()))
        return web.json_response({})


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def url(endpoint: Endpoint) -> Iterator[str]:
    with Served(endpoint.app()) as served:
        yield f"{served}/v1"


def play(url: str, items: list[Item], **how: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        agent = await TASK.open(url)
        try:
            return await asyncio.gather(*(agent.episode(item, **how) for item in items), return_exceptions=True)
        finally:
            await agent.close()

    return asyncio.run(all_of_them())


@needs_node
def test_many_games_in_one_process_each_with_its_own_tags_and_reward(endpoint: Endpoint, url: str) -> None:
    items = list(itertools.islice(make_items("eval", 0), 12))
    played = play(url, items, split="eval")
    assert [game.reward for game in played] == [1.0] * 12
    assert sum(game.calls for game in played) == len(endpoint.calls)
    episodes: dict[str, str] = {}
    for headers, body in endpoint.calls:
        assert headers["x-slipstream-split"] == "eval"
        assert (
            episodes.setdefault(headers["x-slipstream-episode"], headers["x-slipstream-task"])
            == headers["x-slipstream-task"]
        )
        assert set(body) == {"model", "messages", "tools", "tool_choice"}, "the SDK's defaults, nothing of ours"
        assert (body["model"], body["tool_choice"]) == ("words", "auto")
        assert body["tools"][0]["function"]["name"] == "guess"
    assert sorted(episodes.values()) == sorted(item.id for item in items)
    assert sorted(endpoint.posts) == sorted((episode, "rewards", {"value": 1}) for episode in episodes)


@needs_node
def test_the_model_reads_how_each_game_ended(endpoint: Endpoint, url: str) -> None:
    endpoint.acts = "stubborn"
    items = [pairs("word", "train")[0], pairs("number", "train")[0]]
    for item, played in zip(items, play(url, items), strict=True):
        assert played == Played(0.0, GUESSES[item.kind] + 1)
    last = [body["messages"][-1] for _, body in endpoint.calls if len(body["messages"]) == 1 + 2 * GUESSES["number"]]
    assert [message["content"] for message in last] == [f"no guesses left, it was {items[1].secret}"]
    first = next(
        body["messages"]
        for _, body in endpoint.calls
        if len(body["messages"]) == 3 and "word" in body["messages"][0]["content"]
    )
    assert first[0] == {"role": "user", "content": items[0].question}
    assert first[2]["content"] == answer("word", items[0].secret, items[0].first)


@needs_node
def test_without_a_reward_it_says_that_it_is_done_and_untagged_nothing(endpoint: Endpoint, url: str) -> None:
    play(url, [pairs("word", "train")[0]], post_reward=False)
    assert [(what, body) for _, what, body in endpoint.posts] == [("done", {})]
    endpoint.calls.clear()
    play(url, [pairs("word", "train")[0]], tagged=False)
    assert endpoint.calls
    assert not [name for headers, _ in endpoint.calls for name in headers if name.lower().startswith("x-slipstream")]
    assert len(endpoint.posts) == 1


@needs_node
@pytest.mark.parametrize("acts", ["talk", "broken"])
def test_who_does_not_guess_loses(endpoint: Endpoint, url: str, acts: str) -> None:
    endpoint.acts = acts
    assert [game.reward for game in play(url, [pairs("word", "train")[0]])] == [0.0]


@needs_node
def test_a_game_that_fails_is_handed_over_as_its_error_and_the_others_go_on(endpoint: Endpoint, url: str) -> None:
    endpoint.acts = "down"
    failed = play(url, list(itertools.islice(make_items("train", 0), 3)))
    assert [type(error) for error in failed] == [ConnectionError] * 3
    assert "no engine" in str(failed[0])
    assert not endpoint.posts


@needs_node
def test_an_endpoint_that_knows_no_rewards_is_no_failure(endpoint: Endpoint, url: str) -> None:
    endpoint.plain = True
    assert [game.reward for game in play(url, [pairs("number", "eval")[0]])] == [1.0]


@needs_node
def test_games_of_a_process_that_dies_fail_at_once(url: str) -> None:
    async def some() -> list[Any]:
        agent = await TASK.open(url)
        items = itertools.islice(make_items("train", 0), 4)
        games = [asyncio.create_task(agent.episode(item)) for item in items]
        await asyncio.sleep(0)
        agent.process.kill()
        ended = await asyncio.wait_for(asyncio.gather(*games, return_exceptions=True), 30)
        with pytest.raises(ConnectionError, match="ended"):
            await agent.episode(pairs("word", "train")[0])
        await agent.close()
        return ended

    assert all(isinstance(error, ConnectionError) for error in asyncio.run(some()))


@needs_node
def test_it_runs_alone(endpoint: Endpoint, url: str) -> None:
    command = [
        "node",
        str(FOLDER / "agent.mjs"),
        "--base-url",
        url,
        "--games",
        "10",
        "--runs",
        "5",
        "--concurrency",
        "3",
        "--split",
        "eval",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    told = json.loads(ran.stdout)
    assert (told["games"], told["failed"], told["reward"], told["calls"]) == (10, 0, 1, len(endpoint.calls))
    tasks = [headers["x-slipstream-task"] for headers, _ in endpoint.calls]
    assert len(set(tasks)) == 2, "five runs of each item"
    endpoint.acts = "down"
    assert subprocess.run([*command[:4], "--games", "2"], capture_output=True, check=False, timeout=300).returncode == 1


def test_what_is_missing_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(words_task, "FOLDER", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/node")
    with pytest.raises(Missing, match="npm ci --prefix examples/words"):
        asyncio.run(TASK.open("http://127.0.0.1:1/v1"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Missing, match="Node.js 20"):
        asyncio.run(TASK.open("http://127.0.0.1:1/v1"))
