"""The pydantic-ai agent against an endpoint that speaks the OpenAI protocol: what it sends is what the README shows, and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from clue.agent import ClueAgent
from clue.mystery import NOBODY, cases
from clue.task import TASK
from tests.support.served import Served

CASE = next(cases("eval", 9))
RIGHT = [CASE.crime.answer(q) for q in CASE.questions]


class Endpoint:
    """Asks about the room of the crime, then answers right; or does as `replies` say. Keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.posts: list[tuple[str, Any]] = []
        self.replies: list[Any] = [{"about": CASE.crime.where}, RIGHT[0], " ".join(RIGHT[1:])]
        self.status = 200

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/slipstream/v1/episodes/{episode}/{what}", self.post)
        return app

    async def chat(self, request: web.Request) -> web.Response:
        self.calls.append((dict(request.headers), await request.json()))
        said = self.replies[min(len(self.calls), len(self.replies)) - 1]
        message: dict[str, Any] = {"role": "assistant", "content": said, "reasoning": " hm"}
        if said is None:
            return web.json_response({"error": {"message": "no engine"}}, status=400)
        if isinstance(said, dict):
            function = {"name": "ask", "arguments": json.dumps(said)}
            message |= {"content": None, "tool_calls": [{"id": f"c{len(self.calls)}", "type": "function", "function": function}]}  # fmt: skip
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "model"}
        return web.json_response({**head, "choices": [choice]})

    async def post(self, request: web.Request) -> web.Response:
        if self.status != 200:
            raise web.HTTPNotFound
        self.posts.append((request.match_info["episode"], (request.match_info["what"], await request.json())))
        return web.json_response({})


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def url(endpoint: Endpoint) -> Iterator[str]:
    with Served(endpoint.app()) as served:
        yield f"{served}/v1"


def work(url: str, **how: Any) -> Any:
    async def one() -> Any:
        agent = await TASK.open(url)
        assert isinstance(agent, ClueAgent)
        try:
            return await agent.episode(CASE, **how)
        finally:
            await agent.close()

    return asyncio.run(one())


def test_a_tagged_episode_names_its_run_and_posts_its_reward(endpoint: Endpoint, url: str) -> None:
    played = work(url, split="eval")
    assert played == (1.0, 3)
    ids = {headers["x-slipstream-episode"] for headers, _ in endpoint.calls}
    assert len(ids) == 1
    for headers, body in endpoint.calls:
        assert (headers["x-slipstream-task"], headers["x-slipstream-split"]) == (CASE.id, "eval")
        assert body.get("tool_choice", "auto") == "auto", "a forced tool would not be trained on"
        assert "temperature" not in body
        assert [tool["function"]["name"] for tool in body["tools"]] == ["ask"]
    (episode,) = ids
    assert endpoint.posts == [(episode, ("rewards", {"value": 1.0})), (episode, ("done", {}))]


def test_the_history_grows_and_the_reasoning_goes_back_beside_the_content(endpoint: Endpoint, url: str) -> None:
    work(url)
    roles = [[m["role"] for m in body["messages"]] for _, body in endpoint.calls]
    assert roles[0] == ["system", "user"]
    assert roles[1] == [*roles[0], "assistant", "tool"]
    assert roles[2] == [*roles[1], "assistant", "user"]
    last = endpoint.calls[2][1]["messages"]
    assert last[1]["content"] == CASE.opening
    assert last[3]["content"] == CASE.testimony(CASE.crime.where)
    assert last[4]["content"] == RIGHT[0]
    assert last[5]["content"] == CASE.closing
    assert "<think>" not in json.dumps(last)


def test_an_untagged_episode_says_nothing(endpoint: Endpoint, url: str) -> None:
    assert work(url, tagged=False).reward == 1.0
    assert not [name for headers, _ in endpoint.calls for name in headers if name.lower().startswith("x-slipstream")]
    assert not endpoint.posts


def test_without_a_reward_it_says_only_that_it_is_done(endpoint: Endpoint, url: str) -> None:
    work(url, post_reward=False)
    assert [what for _, (what, _) in endpoint.posts] == ["done"]


def test_the_witness_answers_once_and_patience_ends(endpoint: Endpoint, url: str) -> None:
    endpoint.replies = [{"about": CASE.crime.where}]
    played = work(url)
    assert played == (0.0, 4)
    assert endpoint.calls[-1][1]["messages"][-1]["content"] == NOBODY


def test_an_answer_that_is_none_counts_as_wrong(endpoint: Endpoint, url: str) -> None:
    endpoint.replies = [RIGHT[0], "..."]
    assert work(url).reward == pytest.approx(1 / 3)


def test_an_endpoint_that_is_down_is_an_error_and_one_without_rewards_is_none(endpoint: Endpoint, url: str) -> None:
    endpoint.status = 404
    assert work(url).reward == 1.0
    endpoint.replies = [None]
    with pytest.raises(Exception, match="no engine"):
        work(url)
