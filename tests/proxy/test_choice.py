"""Adapter and engine of a call."""

from __future__ import annotations

import json

from tests.support.dataplane import ASK, post


async def test_no_engine_has_the_adapter(start, fake):
    proxy = await start(models={"old": {"base": "tiny@9"}})
    engines = [{"url": fake.url, "ok": True, "loaded": []}]
    proxy.plane.live.update({"models": {"tiny": {"base": "tiny", "live": "tiny"}}, "engines": engines})
    status, headers, body = await post(proxy.url, {**ASK, "model": "old"})
    assert status == 503 and headers["retry-after"] == "1" and b"no engine has this model" in body
    assert not fake.seen and not proxy.plane.services.in_flight


async def test_an_episode_stays_with_its_engine(start, fake, serve):
    proxy = await start()
    for number in range(4):
        headers = {"x-slipstream-episode": "e", "x-slipstream-task": "t"}
        status, headers, body = await post(proxy.url, ASK, headers=headers)
        assert status == 200 and headers["x-slipstream-adapter"] == "tiny" and json.loads(body)["model"] == "tiny"
    heads = [frame.head for frame in await proxy.record(4)]
    assert {(h["episode"], h["pin"], h["arm"]) for h in heads} == {("e", "local", "live")}
