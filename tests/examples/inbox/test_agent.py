"""The agent against a small HTTP server that speaks the OpenAI protocol."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from inbox import agent, inbox


@dataclass
class Endpoint:
    """An OpenAI-compatible endpoint with a policy of its own, and what it was asked."""

    policy: str = "good"
    with_rewards: bool = True
    url: str = ""
    calls: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def message(self, body: dict[str, Any]) -> dict[str, Any]:
        """The next move: search the question's name, read the first hit, answer its day."""
        messages = body["messages"]
        if self.policy == "talker":
            return {"role": "assistant", "content": "I think it is monday"}
        if self.policy == "searcher":
            return self.tool("search", {"keywords": "the"})
        if self.policy == "broken":
            return self.tool("read", {"mail": "?"})
        last = messages[-1]
        if last["role"] == "user":
            name = next(w for w in last["content"].split() if w in inbox.NAMES)
            return self.tool("search", {"keywords": name})
        if last["content"].startswith("mail"):
            return self.tool("read", {"id": int(re.findall(r"\d+", last["content"])[0])})
        return self.tool("answer", {"text": last["content"].split()[-1]})

    def tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        call = {
            "id": f"call-{len(self.calls)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body of the reply to one POST."""
        if path == "/v1/chat/completions":
            self.calls.append((headers, body))
            if self.policy == "down":
                return 400, {"error": {"message": "no", "type": "invalid_request_error"}}
            choice = {"index": 0, "message": self.message(body), "finish_reason": "stop"}
            return 200, {
                "id": f"chat-{len(self.calls)}",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
            }
        if self.with_rewards and path.startswith("/slipstream/"):
            self.posts.append((path, body))
            return 200, {}
        return 404, {"detail": "Not Found"}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A running endpoint on a free port."""
    state = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {key.lower(): value for key, value in self.headers.items()}
            status, reply = state.answer(self.path, headers, json.loads(raw or b"{}"))
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield state
    server.shutdown()
    server.server_close()
    thread.join(30)


def play(endpoint: Endpoint, task: inbox.Task, **options: Any) -> agent.Result:
    async def run() -> agent.Result:
        async with agent.make_client(endpoint.url) as client:
            return await agent.run_episode(client, task, episode_id="ep-1", **options)

    return asyncio.run(run())


def test_a_good_policy_is_rewarded_and_every_call_is_tagged(endpoint: Endpoint) -> None:
    task = inbox.make_task(4)
    result = play(endpoint, task, split="eval", model="some-model", keep_replies=True)
    assert (result.reward, result.calls, result.answer) == (1.0, 3, task.answer)
    assert len(result.replies) == 3
    assert len(endpoint.calls) == 3
    for headers, body in endpoint.calls:
        assert headers["x-slipstream-episode"] == "ep-1"
        assert headers["x-slipstream-task"] == "inbox-4"
        assert headers["x-slipstream-split"] == "eval"
        assert "x-slipstream-done" not in headers
        assert body["model"] == "some-model"
        assert [tool["function"]["name"] for tool in body["tools"]] == ["search", "read", "answer"]
        assert body["temperature"] == 1.0
    roles = [message["role"] for message in endpoint.calls[-1][1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_the_reward_is_posted_and_then_done(endpoint: Endpoint) -> None:
    assert play(endpoint, inbox.make_task(4)).reward_posted
    assert endpoint.posts == [
        ("/slipstream/v1/episodes/ep-1/rewards", {"name": "reward", "value": 1.0, "source": "agent"}),
        ("/slipstream/v1/episodes/ep-1/done", {}),
    ]


def test_without_a_reward_only_the_end_is_told(endpoint: Endpoint) -> None:
    result = play(endpoint, inbox.make_task(4), post_reward=False)
    assert (result.reward, result.reward_posted) == (1.0, False)
    assert endpoint.posts == [("/slipstream/v1/episodes/ep-1/done", {})]


def test_an_endpoint_without_rewards_is_fine(endpoint: Endpoint) -> None:
    endpoint.with_rewards = False
    result = play(endpoint, inbox.make_task(4))
    assert result.reward == 1.0
    assert not result.reward_posted


@pytest.mark.parametrize(("policy", "calls"), [("talker", 1), ("searcher", 4), ("broken", 4)])
def test_poor_policies_end_without_reward(endpoint: Endpoint, policy: str, calls: int) -> None:
    endpoint.policy = policy
    result = play(endpoint, inbox.make_task(4))
    assert (result.reward, result.calls) == (0.0, calls)
    assert endpoint.posts[0][1]["value"] == 0.0


def test_many_episodes_at_once(endpoint: Endpoint) -> None:
    results: list[agent.Result | Exception] = []

    async def run() -> None:
        async with agent.make_client(endpoint.url) as client:
            await agent.run_all(
                agent.schedule("train", 3, 8, 24),
                lambda task, episode: agent.run_episode(client, task, episode_id=episode),
                concurrency=8,
                on_result=results.append,
            )

    asyncio.run(run())
    done = [r for r in results if isinstance(r, agent.Result)]
    assert len(done) == len(results) == 24
    assert len({r.episode_id for r in done}) == 24
    assert sorted([r.task_id for r in done].count(t) for t in {r.task_id for r in done}) == [8, 8, 8]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,128}", r.episode_id) for r in done)


def test_the_command_line(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    assert agent.main(["--episodes", "8", "--concurrency", "4"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["episodes"], summary["failed"], summary["success"], summary["calls"]) == (8, 0, 1.0, 24)


def test_errors_are_counted_and_no_reward_is_posted(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.policy = "down"
    assert agent.main(["--base-url", endpoint.url, "--episodes", "2", "--concurrency", "2"]) == 1
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["episodes"], summary["failed"]) == (0, 2)
    assert endpoint.posts == []


def test_answers_that_are_no_text() -> None:
    assert agent.answer_text('{"text": "monday"}') == "monday"
    for arguments in ("", "[]", "{}", "null", "not json"):
        assert agent.answer_text(arguments) == ""


def test_the_agent_needs_nothing_of_slipstream() -> None:
    folder = Path(agent.__file__).parent
    for name in ("agent.py", "inbox.py"):
        for node in ast.walk(ast.parse((folder / name).read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            assert not any(module.startswith("slipstream") for module in modules)
