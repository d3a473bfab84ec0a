"""The trainer has the engine's GPU: calls wait in the data plane."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest
from tests.support import until
from tests.support.dataplane import ASK, FakeControlSocket, post
from tests.support.fake_engine import FakeEngine

from slipstream_proxy.data.engines import hold


class Held(FakeControlSocket):
    def say(self, until: float | None) -> None:
        state = {k: v for k, v in self.state.items() if k != "hold"}
        self.state = state if until is None else {**state, "hold": {"worker": "t", "until": until}}
        self.changed.set()


@pytest.fixture
async def control(tmp_path, fake):
    (tmp_path / "data").mkdir()
    fake.models |= {"tiny@1", "tiny@2"}
    made = Held(tmp_path / "data" / "control.sock")
    made.state = {**made.state, "engines": [{"url": fake.url, "ok": True, "loaded": ["tiny@1", "tiny@2"]}]}
    yield await made.start()
    await made.runner.cleanup()


def soon() -> float:
    return time.time() + 600


async def held(proxy, control, ends: float) -> None:
    await until(lambda: proxy.plane.live.connected)
    control.say(ends)
    await until(lambda: proxy.plane.holding.on)


async def test_calls_wait_and_then_go_on_in_order(start, fake, control):
    proxy = await start()
    await held(proxy, control, soon())
    calls = []
    for n in range(5):
        body = {**ASK, "stream": bool(n % 2), "user": f"n{n}"}
        calls.append(asyncio.create_task(post(proxy.url, body, headers={"x-slipstream-episode": f"e{n}"})))
        await until(lambda n=n: len(proxy.plane.holding.waiting) == n + 1)
    calls.append(asyncio.create_task(post(proxy.url, {"model": "tiny", "input": "x"}, path="/v1/embeddings")))
    await until(lambda: len(proxy.plane.holding.waiting) == 6)
    assert not fake.seen and not any(c.done() for c in calls)
    async with aiohttp.ClientSession() as session, session.get(proxy.url + "/readyz") as reply:
        assert reply.status == 200  # who waits is not refused, so this is ready
    async with aiohttp.ClientSession() as session, session.get(proxy.url + "/v1/models") as reply:
        assert reply.status == 200
    control.say(None)
    assert [r[0] for r in await asyncio.gather(*calls)] == [200] * 6
    order = [body["user"] for body, _ in fake.seen if "user" in body]
    assert sorted(order) == [f"n{n}" for n in range(5)]
    async with aiohttp.ClientSession() as session, session.get(proxy.url + "/metrics") as reply:
        text = await reply.text()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("slipstream_h"))
    assert float(figures["slipstream_held_calls_total"]) == 6
    assert 0 < float(figures["slipstream_hold_longest_seconds"]) <= float(figures["slipstream_hold_wait_seconds_total"])
    assert (await post(proxy.url, ASK))[0] == 200


async def test_other_upstreams_do_not_wait(start, fake, control):
    other = await FakeEngine().start()
    try:
        proxy = await start(models={"big": {"upstream": other.url, "model": "tiny"}})
        await held(proxy, control, soon())
        status, _, body = await post(proxy.url, {**ASK, "model": "big"})
        assert status == 200 and json.loads(body)["choices"] and not fake.seen
    finally:
        await other.stop()


async def test_who_goes_away_while_waiting_costs_nothing(start, fake, control):
    proxy = await start()
    await held(proxy, control, soon())
    gone = asyncio.create_task(post(proxy.url, {**ASK, "user": "gone"}))
    await until(lambda: proxy.plane.holding.waiting)
    gone.cancel()
    await until(lambda: not proxy.plane.services.in_flight)
    stays = asyncio.create_task(post(proxy.url, {**ASK, "user": "stays"}))
    await until(lambda: len(proxy.plane.holding.waiting) == 2)
    control.say(None)
    assert (await stays)[0] == 200
    assert [body["user"] for body, _ in fake.seen] == ["stays"]


async def test_more_than_the_limit_are_told_to_come_again(start, fake, control, monkeypatch):
    monkeypatch.setattr(hold, "MAX_WAITING_CALLS", 1)
    proxy = await start()
    await held(proxy, control, soon())
    first = asyncio.create_task(post(proxy.url, ASK))
    await until(lambda: proxy.plane.holding.waiting)
    status, headers, _ = await post(proxy.url, ASK)
    assert status == 503 and headers["retry-after"]
    control.say(None)
    assert (await first)[0] == 200 and len(fake.seen) == 1


async def test_nobody_waits_longer_than_for_the_engine(start, fake, control):
    proxy = await start(proxy={"upstream_timeout": 0.1})
    await held(proxy, control, soon())
    status, _, body = await post(proxy.url, ASK)
    assert status == 504 and json.loads(body)["error"]["message"]
    assert not fake.seen and not proxy.plane.services.in_flight


async def test_a_hold_that_nobody_ends_ends(start, fake, control, monkeypatch):
    """The control plane is gone, and whoever held it too."""
    monkeypatch.setattr(hold, "WAKE_GRACE_S", 0.2)
    proxy = await start()
    await held(proxy, control, time.time() + 0.5)
    await control.runner.cleanup()
    assert (await post(proxy.url, ASK))[0] == 200


async def test_a_hold_stands_in_the_file_for_workers_that_start(start, fake, control, tmp_path):
    (tmp_path / "data" / "live.json").write_text(
        json.dumps({**control.state, "hold": {"worker": "t", "until": soon()}})
    )
    control.say(soon())
    proxy = await start()
    assert proxy.plane.holding.on
    call = asyncio.create_task(post(proxy.url, ASK))
    await until(lambda: proxy.plane.live.connected and proxy.plane.holding.waiting)
    control.say(None)
    assert (await call)[0] == 200
