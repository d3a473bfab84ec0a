"""Calls through a router: the episode goes along, and what it sends astray goes to an engine that has the adapter."""

from __future__ import annotations

import json

import pytest
from tests.support import until
from tests.support.dataplane import ASK, STATE, post
from tests.support.fake_engine import FakeEngine
from tests.support.fake_router import FakeRouter


@pytest.fixture
async def other():
    engine = await FakeEngine().start()
    yield engine
    await engine.stop()


async def behind(start, control, fake, urls):
    """A data plane whose calls go to a router before these engines."""
    router = await FakeRouter(urls).start()
    both = ["tiny@1", "tiny@2"]
    engines = [{"url": router.url, "ok": True, "loaded": both, "router": True}]
    control.state = {**STATE, "engines": [*engines, {"url": fake.url, "ok": True, "loaded": both}]}
    proxy = await start(engine={"router": router.url})
    await until(lambda: proxy.plane.live.connected)
    return router, proxy


async def test_the_router_gets_the_episode(start, fake, control):
    router, proxy = await behind(start, control, fake, [fake.url])
    headers = {"x-slipstream-episode": "run ü", "X-Session-Id": "the client's"}
    assert (await post(proxy.url, ASK, headers=headers))[0] == 200
    assert router.sessions == [("/v1/chat/completions", (await proxy.record())[0].head["episode"])]
    await router.stop()


async def test_an_engine_without_the_adapter_fails_no_call_and_moves_no_episode(start, fake, control, other):
    router, proxy = await behind(start, control, fake, [other.url])  # ``other`` has no adapter: 404
    status, headers, body = await post(proxy.url, ASK, headers={"x-slipstream-episode": "e"})
    adapter = headers["x-slipstream-adapter"]
    assert status == 200 and adapter in ("tiny@1", "tiny@2") and json.loads(body)["model"] == "tiny"
    assert other.seen[0][0]["model"] == fake.seen[0][0]["model"] == adapter
    assert (await proxy.record())[0].head["pin"] != "moved"
    await router.stop()


async def test_a_router_without_engines_or_gone_fails_no_call(start, fake, control):
    router, proxy = await behind(start, control, fake, ["http://127.0.0.1:9"])  # it answers 503
    assert (await post(proxy.url, ASK))[0] == 200
    await router.stop()
    assert (await post(proxy.url, ASK))[0] == 200
    assert len(fake.seen) == 2


async def test_without_a_router_no_header_is_added(start, fake, control):
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    await post(proxy.url, ASK, headers={"x-slipstream-episode": "e"})
    assert "x-session-id" not in {name.lower() for name in fake.seen[0][1]}
