"""What every task of the examples has to be."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from aiohttp import web
from common.task import EXAMPLES, Missing, Task, load_task, task_names
from tests.support.served import Served

NAMES = sorted(task_names())


class Silent:
    """An endpoint on which the model says one word, in whatever protocol it is asked. Keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.rewards: list[tuple[str, Any]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/messages", self.message)
        app.router.add_post("/slipstream/v1/episodes/{episode}/{what}", self.posted)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        body = await self.note(request)
        choice = {"index": 0, "message": {"role": "assistant", "content": "no"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [choice], "usage": usage})

    async def message(self, request: web.Request) -> web.Response:
        body = await self.note(request)
        said = {"content": [{"type": "text", "text": "no"}], "stop_reason": "end_turn", "stop_sequence": None}
        usage = {"input_tokens": 9, "output_tokens": 2}
        head = {"id": "msg-1", "type": "message", "role": "assistant", "model": body["model"]}
        return web.json_response({**head, **said, "usage": usage})

    async def note(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.calls.append(({name.lower(): value for name, value in request.headers.items()}, body))
        return body

    async def posted(self, request: web.Request) -> web.Response:
        if request.match_info["what"] == "rewards":
            self.rewards.append((request.match_info["episode"], (await request.json())["value"]))
        return web.json_response({})


def one_episode(task: Task, silent: Silent, **how: Any) -> float:
    async def play(url: str) -> float:
        agent = await task.open(f"{url}/v1")
        try:
            return (await agent.episode(next(task.items("eval", 0)), **how)).reward
        finally:
            await agent.close()

    with Served(silent.app()) as url:
        try:
            return asyncio.run(play(url))
        except Missing as missing:
            pytest.skip(str(missing))


@pytest.mark.parametrize("name", NAMES)
def test_it_has_the_shape_and_splits_that_share_nothing(name: str) -> None:
    task = load_task(name)
    assert isinstance(task, Task)
    assert task.name == name
    assert task.model.parent.parent == EXAMPLES
    assert (task.model.parent / "README.md").is_file()
    seen = {
        (split, seed): [i.id for i in itertools.islice(task.items(split, seed), 60)]
        for split in ("train", "eval")
        for seed in (0, 1)
    }
    assert seen["train", 0] == [item.id for item in itertools.islice(task.items("train", 0), 60)]
    assert not {*seen["train", 0], *seen["train", 1]} & {*seen["eval", 0], *seen["eval", 1]}
    assert seen["train", 0] != seen["train", 1]


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_is_a_score_whatever_it_reads(name: str) -> None:
    for text in ("", "| no", '| answer #1 {"x": []}', "[1] user\n| " + "z" * 200):
        assert 0.0 <= load_task(name).rule(text) <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_its_agent_names_the_run_the_model_and_the_reward(name: str) -> None:
    silent, task = Silent(), load_task(name)
    reward = one_episode(task, silent, split="eval")
    assert silent.calls
    item = next(task.items("eval", 0))
    episodes = {headers["x-slipstream-episode"] for headers, _ in silent.calls}
    assert {body["model"] for _, body in silent.calls} == {name}
    assert {headers["x-slipstream-split"] for headers, _ in silent.calls} == {"eval"}
    assert {headers["x-slipstream-task"] for headers, _ in silent.calls} == {item.id}
    assert silent.rewards == [(episode, reward) for episode in episodes]


@pytest.mark.parametrize("name", NAMES)
def test_its_agent_says_nothing_where_it_is_not_asked_to(name: str) -> None:
    silent, task = Silent(), load_task(name)
    one_episode(task, silent, post_reward=False)
    assert silent.calls
    assert not silent.rewards
    silent = Silent()
    one_episode(task, silent, tagged=False)
    assert not silent.rewards
    assert not [header for headers, _ in silent.calls for header in headers if header.startswith("x-slipstream")]
