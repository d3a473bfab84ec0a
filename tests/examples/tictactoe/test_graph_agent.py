"""The LangGraph agent against an endpoint that speaks the OpenAI protocol: what it sends is what the README shows, and no more."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from tests.support.served import Served
from tictactoe import tictactoe
from tictactoe.graph_agent import Played, TicTacToeAgent


class Endpoint:
    """Plays the first free square, or as `reply` says. Keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.reply = "move"
        self.knows_rewards = True

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/slipstream/v1/episodes/{episode}/rewards", self.reward)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((dict(request.headers), body))
        if self.reply == "down":
            return web.json_response({"error": {"message": "no engine"}}, status=400)
        board = re.findall(r"[1-9XO]", body["messages"][-1]["content"].replace("X.", ""))[-9:]
        square = next(cell for cell in board if cell.isdigit()) if self.reply == "move" else "0"
        function = {"name": "play", "arguments": json.dumps({"square": int(square)})}
        message: dict[str, Any] = {"role": "assistant", "content": "I give up"}
        if self.reply != "talk":
            call = {"id": f"call-{len(self.calls)}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [choice]})

    async def reward(self, request: web.Request) -> web.Response:
        if not self.knows_rewards:
            raise web.HTTPNotFound
        self.posts.append((request.match_info["episode"], await request.json()))
        return web.json_response({})


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def url(endpoint: Endpoint) -> Iterator[str]:
    with Served(endpoint.app()) as served:
        yield f"{served}/v1"


def play(url: str, *, tagged: bool = True, split: str = "train") -> Played:
    task = tictactoe.tasks_of(split)[0]
    return asyncio.run(TicTacToeAgent(url, model="tiny").play(task, random.Random(0), split=split, tagged=tagged))


def test_a_tagged_game_names_its_run_and_posts_its_reward(endpoint: Endpoint, url: str) -> None:
    played = play(url, split="eval")
    assert played.calls == len(endpoint.calls) >= 2
    for headers, body in endpoint.calls:
        assert headers["x-slipstream-episode"] == played.episode
        assert headers["x-slipstream-task"] == played.task.id
        assert headers["x-slipstream-split"] == "eval"
        assert set(body) == {"model", "messages", "tools", "stream"}, "the framework's defaults, nothing of ours"
    assert endpoint.posts == [(played.episode, {"value": played.reward})]


def test_an_untagged_game_says_nothing(endpoint: Endpoint, url: str) -> None:
    play(url, tagged=False)
    assert endpoint.calls
    assert not [name for headers, _ in endpoint.calls for name in headers if name.lower().startswith("x-slipstream")]
    assert not endpoint.posts


@pytest.mark.parametrize("reply", ["talk", "taken"])
def test_a_reply_that_is_no_move_loses(endpoint: Endpoint, url: str, reply: str) -> None:
    endpoint.reply = reply
    assert play(url).reward == -1.0


def test_an_endpoint_that_knows_no_rewards_is_no_failure(endpoint: Endpoint, url: str) -> None:
    endpoint.knows_rewards = False
    assert play(url).calls


def play_itself(url: str) -> Played:
    empty = next(task for split in ("train", "eval") for task in tictactoe.tasks_of(split) if task.board == "." * 9)
    agent = TicTacToeAgent(url, model="tiny", opponent="self")
    return asyncio.run(agent.play(empty, random.Random(0)))


def test_against_itself_each_side_is_an_episode_of_its_own(endpoint: Endpoint, url: str) -> None:
    played = play_itself(url)
    sides: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {}
    for headers, body in endpoint.calls:
        sides.setdefault(headers["x-slipstream-episode"], []).append((headers, body))
    assert len(sides) == 2
    assert played.calls == len(endpoint.calls) == 7, "who takes the first free square wins with the fourth"
    (first, calls), (second, answers) = sides.items()
    assert first == played.episode
    assert dict(endpoint.posts) == {first: {"value": 1.0}, second: {"value": -1.0}}
    # the second side sees its opponent's stone as O, and its own runs are those of that board
    assert answers[0][1]["messages"][0]["content"].endswith("O 2 3\n4 5 6\n7 8 9")
    assert answers[0][0]["x-slipstream-task"] == "tictactoe-O________"
    assert calls[1][1]["messages"][-1]["content"] == "X O 3\n4 5 6\n7 8 9"


@pytest.mark.parametrize("reply", ["talk", "taken"])
def test_who_leaves_a_match_loses_it(endpoint: Endpoint, url: str, reply: str) -> None:
    endpoint.reply = reply
    played = play_itself(url)
    assert played.reward == -1.0
    assert [body for _, body in endpoint.posts] == [{"value": -1.0}], "the other side never moved"


def test_a_match_in_which_a_call_fails_has_no_reward(endpoint: Endpoint, url: str) -> None:
    endpoint.reply = "down"
    with pytest.raises(Exception, match="no engine"):
        play_itself(url)
    assert not endpoint.posts


def test_a_held_out_board_stays_held_out_when_a_match_meets_it(
    endpoint: Endpoint, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = tictactoe.Task(tictactoe.task_id("O" + "." * 8), "O" + "." * 8, "eval")
    monkeypatch.setattr("tictactoe.graph_agent.tasks_of", lambda split: (board,))
    play_itself(url)
    splits = {headers["x-slipstream-task"]: headers["x-slipstream-split"] for headers, _ in endpoint.calls}
    assert splits == {"tictactoe-_________": "train", "tictactoe-O________": "eval"}
