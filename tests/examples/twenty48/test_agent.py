"""The agent with the real client against an endpoint that speaks the OpenAI protocol: what it sends is what the README shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from aiohttp import web
from common.task import load_task
from tests.support.served import Served
from twenty48.agent import Player, Result
from twenty48.board import first_message, make_item, show
from twenty48.players import expert_move, play_expert


class Endpoint:
    """Plays as the expert does, or says what `reply` says. Keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.posts: list[tuple[str, str, Any]] = []
        self.reply: str | None = None
        self.down = self.plain = False

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/slipstream/v1/episodes/{episode}/{what}", self.post)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((dict(request.headers), body))
        if self.down:
            return web.json_response({"error": {"message": "no engine"}}, status=400)
        rows = [line.split() for line in body["messages"][-1]["content"].split("\n")]
        board = tuple(int(cell) for row in rows if all(c.isdigit() for c in row) for cell in row)
        message = {"role": "assistant", "content": self.reply or expert_move(board)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [choice]})

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


def play(url: str, **how: Any) -> Result:
    async def once() -> Result:
        player = Player(url, model="tiny")
        try:
            return await player.play(make_item("eval", 1), **how)
        finally:
            await player.close()

    return asyncio.run(once())


def test_a_game_is_one_conversation_that_grows(endpoint: Endpoint, url: str) -> None:
    played = play(url, split="eval")
    assert played.reward == play_expert(make_item("eval", 1)) == 1.0
    assert played.calls == len(endpoint.calls) >= 12
    for turn, (headers, body) in enumerate(endpoint.calls):
        assert set(body) == {"model", "messages"}, "the client's defaults, nothing of ours"
        assert len(body["messages"]) == 2 * turn + 1
        assert body["messages"][:-2] == (endpoint.calls[turn - 1][1]["messages"] if turn else [])
        assert headers["x-slipstream-task"] == played.item.id
        assert headers["x-slipstream-split"] == "eval"
    episodes = {headers["x-slipstream-episode"] for headers, _ in endpoint.calls}
    assert endpoint.posts == [(episodes.pop(), "rewards", {"value": 1.0})]
    assert not episodes


def test_without_a_reward_it_says_that_it_is_done(endpoint: Endpoint, url: str) -> None:
    play(url, post_reward=False)
    assert [(what, body) for _, what, body in endpoint.posts] == [("done", {})]


def test_an_untagged_game_says_nothing(endpoint: Endpoint, url: str) -> None:
    play(url, tagged=False)
    assert not [name for headers, _ in endpoint.calls for name in headers if name.lower().startswith("x-slipstream")]
    assert not endpoint.posts


def test_an_endpoint_that_knows_no_rewards_is_no_failure(endpoint: Endpoint, url: str) -> None:
    endpoint.plain = True
    assert play(url).calls


def test_a_reply_without_a_move_loses(endpoint: Endpoint, url: str) -> None:
    endpoint.reply = "hello"
    played = play(url)
    assert (played.end, played.calls) == ("wasted", 1)


def test_an_error_of_the_endpoint_is_raised(endpoint: Endpoint, url: str) -> None:
    endpoint.down = True
    with pytest.raises(openai.BadRequestError):
        play(url)
    assert not endpoint.posts


def test_the_task_plays_with_this_agent(endpoint: Endpoint, url: str) -> None:
    async def one() -> Any:
        seat = await load_task("2048").open(url)
        try:
            return await seat.episode(make_item("eval", 1), split="eval", post_reward=False)
        finally:
            await seat.close()

    assert asyncio.run(one()).reward == 1.0
    assert endpoint.calls[0][1]["model"] == "2048"
    assert [what for _, what, _ in endpoint.posts] == ["done"]


def test_the_first_message_has_the_rules_and_the_board() -> None:
    item = make_item("train", 0)
    board = (0, 2, 0, 0, 0, 0, 2, 0, 0)
    assert first_message(item, board)["content"] == f"{item.question}\n{show(board)}"
    assert "Make 32." in item.question
