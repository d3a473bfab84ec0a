"""Adapter and engine of a call."""

from __future__ import annotations

import json

import pytest
from tests.support import free_port
from tests.support.dataplane import ASK, post


async def test_no_engine_has_the_adapter(start, fake):
    proxy = await start(models={"old": {"base": "tiny@9"}})
    engines = [{"url": fake.url, "ok": True, "loaded": []}]
    proxy.plane.live.update({"models": {"tiny": {"base": "tiny", "live": "tiny"}}, "engines": engines})
    status, headers, body = await post(proxy.url, {**ASK, "model": "old"})
    assert status == 503 and headers["retry-after"] == "1" and b"no engine has this model" in body
    assert not fake.seen and not proxy.plane.services.in_flight


async def test_a_version_that_serves_no_more_is_a_404_that_says_since_when(start, fake):
    proxy = await start(models={"old": {"base": "tiny@9"}})
    engines = [{"url": fake.url, "ok": True, "loaded": ["tiny@10"]}]
    state = {"models": {"tiny": {"base": "tiny", "live": "tiny@10"}}, "engines": engines}
    proxy.plane.live.update({**state, "gone": {"tiny@9": ["rolled_back", 1e9]}})
    status, headers, body = await post(proxy.url, {**ASK, "model": "old"})
    assert status == 404 and "retry-after" not in headers, "clients try a 503 again"
    error = json.loads(body)["error"]
    assert (
        "tiny@9 has been rolled back since 2001-09-09 01:46 UTC" in error["message"]
        and "request tiny" in error["message"]
    )
    assert error["param"] == "model"
    engines[0]["loaded"].append("tiny@9")
    proxy.plane.live.update({**state, "gone": {"tiny@9": ["retired", 1e9]}})
    assert b"no longer served" not in (await post(proxy.url, {**ASK, "model": "old"}))[2], "it still has a slot"


async def test_an_episode_stays_with_its_engine(start, fake, serve):
    proxy = await start()
    for number in range(4):
        headers = {"x-slipstream-episode": "e", "x-slipstream-task": "t"}
        status, headers, body = await post(proxy.url, ASK, headers=headers)
        assert status == 200 and headers["x-slipstream-adapter"] == "tiny" and json.loads(body)["model"] == "tiny"
    heads = [frame.head for frame in await proxy.record(4)]
    assert {(h["episode"], h["pin"], h["arm"]) for h in heads} == {("e", "local", "live")}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_adapter_that_the_engine_has_just_unloaded(start, fake, path, stream):
    """The worker still believes that it is there: the call goes on with the live one, and the client sees no 404."""
    fake.models |= {"tiny@1", "tiny@2"}
    proxy = await start()
    engines = [{"url": fake.url, "ok": True, "loaded": ["tiny@1", "tiny@2"]}]
    proxy.plane.live.update({"models": {"tiny": {"base": "tiny", "live": "tiny@1"}}, "engines": engines})
    ask = {"model": "tiny", "prompt": "hi"} if path == "/v1/completions" else {**ASK, "max_tokens": 8}
    tagged = {"x-slipstream-episode": "e"}
    status, headers, _ = await post(proxy.url, {**ask, "stream": stream}, path=path, headers=tagged)
    assert (status, headers["x-slipstream-adapter"]) == (200, "tiny@1")
    proxy.plane.live.update({"models": {"tiny": {"base": "tiny", "live": "tiny@2"}}, "engines": engines})
    fake.models -= {"tiny@1"}
    for _ in range(2):
        status, headers, body = await post(proxy.url, {**ask, "stream": stream}, path=path, headers=tagged)
        assert (status, headers["x-slipstream-adapter"]) == (200, "tiny@2"), body
    first, second, third = [frame.head for frame in await proxy.record(3)]
    assert [h["adapter"] for h in (first, second, third)] == ["tiny@1", "tiny@2", "tiny@2"]
    assert second["pin"] == "moved"
    assert len(fake.seen) == 4, "one call went to the engine twice"


@pytest.mark.parametrize("said", [False, True])
async def test_an_engine_dies_and_the_other_one_takes_no_adapters(start, fake, said):
    """The first call finds out that it is dead, or the control plane has said it. No call is refused."""
    dead = f"http://127.0.0.1:{free_port()}"
    proxy = await start()
    engines = [{"url": dead, "ok": not said, "loaded": ["tiny@1"]}, {"url": fake.url, "ok": True, "loaded": []}]
    proxy.plane.live.update({"models": {"tiny": {"base": "tiny", "live": "tiny@1"}}, "engines": engines})
    for number in range(4):
        status, headers, body = await post(proxy.url, ASK, headers={"x-slipstream-episode": f"e{number % 2}"})
        assert (status, headers["x-slipstream-adapter"]) == (200, "tiny"), body
    assert {frame.head["pin"] for frame in await proxy.record(4)} == {"moved"}


async def test_a_model_that_no_engine_knows_stays_a_404(start, fake):
    fake.models = {"other"}
    proxy = await start()
    engines = [{"url": fake.url, "ok": True, "loaded": ["tiny@1"]}]
    proxy.plane.live.update({"models": {"tiny": {"base": "tiny", "live": "tiny@1"}}, "engines": engines})
    status, _, body = await post(proxy.url, ASK)
    assert status == 404
    assert b"does not exist" in body
