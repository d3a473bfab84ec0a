"""What an agent tagged its calls with, as any text, names the same thing in every route and command afterwards."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support import wait_for
from tests.support.fake_engine import FakeEngine, beside
from tests.support.running import Running, run_proxy

from slipstream.cli import main
from slipstream.client import Client
from slipstream.contract import ForgetIn, RewardIn

CALL = {"model": "inbox", "messages": [{"role": "user", "content": "hi"}]}
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)
SEEN = ("ann@example.com", "a b", "Sort ☃", "ep p", "run~x", "a/b", "50%2F", "..", 'say "hi"', "line\nend", "x" * 3000)
"""Texts that a property test would find late."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    engine = FakeEngine()
    engine.models |= {"inbox"}
    with beside(engine), run_proxy(tmp_path_factory.mktemp("any"), engine.url) as running:
        yield running


def said(argv: list[str], proxy: Running) -> Any:
    """What a command prints as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*argv, "--json", "--url", proxy.url]) == 0
    return json.loads(out.getvalue())


def test_a_look_sees_each_call_that_has_ended(proxy: Running) -> None:
    with Client(proxy.url) as client:
        for n in range(1, 9):
            tags = {"slipstream_episode": "looked at"}
            body = CALL | {"metadata": tags, "stream": n % 2 == 0}
            httpx.post(f"{proxy.url}/v1/chat/completions", json=body, trust_env=False).raise_for_status()
            assert client.episode("looked at").calls == n


def check(proxy: Running, text: str) -> None:
    tags = {"slipstream_episode": text, "slipstream_task": text, "slipstream_tag_user": text}
    reply = httpx.post(f"{proxy.url}/v1/chat/completions", json=CALL | {"metadata": tags}, timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    episode = reply.headers["x-slipstream-episode"]
    with Client(proxy.url) as client:
        assert client.episode(text).calls == 1  # as soon as its call has ended
        ack = client.add_reward(text, RewardIn(value=1.0))
        assert ack.done
        found = client.episode(text)
        wait_for(lambda: client.episode(text).reward == 1.0, 60, 0.05, "the reward")
        assert found.id == episode.partition("~")[0]
        for filters in ({"task": text}, {"tag": f"user:{text}"}, {"tags": {"user": text}}):
            assert [e.id for e in client.episodes(**filters).episodes] == [episode], filters
        assert b"".join(client.export("jsonl", task=text)).count(b"\n") == 1
        learning = httpx.get(
            f"{proxy.url}/slipstream/v1/learning", params={"task": text, "tag": f"user:{text}"}, trust_env=False
        )
        assert learning.status_code == 200, learning.text
        for kind in ("groups", "labels/queue"):
            assert httpx.get(
                f"{proxy.url}/slipstream/v1/{kind}", params={"task": text}, trust_env=False
            ).status_code in (200, 404)
        client.done(text)
        assert client.forget(ForgetIn(episodes=[text], tags={"user": text}, user=text)).forgotten == 1
        assert client.episodes(tags={"user": text}).episodes == []


@pytest.mark.parametrize("text", SEEN)
def test_a_text_that_was_met(proxy: Running, text: str) -> None:
    check(proxy, text)


@given(TEXTS)
@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_any_text(proxy: Running, text: str) -> None:
    check(proxy, text)


@pytest.mark.parametrize("text", ["bob@example.com", "Rate ☃", "two words"])
def test_the_commands_take_it_too(proxy: Running, text: str, tmp_path: Path) -> None:
    tags = {"slipstream_episode": text, "slipstream_task": text, "slipstream_tag_user": text}
    httpx.post(f"{proxy.url}/v1/chat/completions", json=CALL | {"metadata": tags}, timeout=60, trust_env=False)
    wait_for(lambda: said(["episodes", "--task", text], proxy)["episodes"], 60, 0.1, "the episode")
    assert said(["episodes", text], proxy)["calls"] == 1
    assert len(said(["episodes", "--tag", f"user={text}"], proxy)["episodes"]) == 1
    assert main(["export", "--task", text, "--out", str(tmp_path / "out"), "--url", proxy.url]) == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 1
    assert said(["forget", "--user", text, "--yes"], proxy)["forgotten"] == 1
    assert said(["episodes", "--task", text], proxy)["episodes"] == []
