"""Engines that are down: no call waits for them, and they are found again."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support import until
from tests.support.dataplane import ASK, post, read_request
from tests.support.fake_engine import FakeEngine

from slipstream_proxy.data.engines import probe


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(probe, "PROBE_INTERVAL_S", 0.05)
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.3)


async def asked(proxy, **headers) -> tuple[int, float, str | None]:
    """Status, seconds, Retry-After."""
    began = time.monotonic()
    status, got, _ = await post(proxy.url, ASK, headers=headers)
    return status, time.monotonic() - began, got.get("retry-after")


async def test_an_engine_that_refuses_gets_no_calls_until_it_is_back(start):
    engine = await FakeEngine().start()
    port = int(engine.url.rpartition(":")[2])
    proxy = await start(engine={"urls": [engine.url]})
    assert (await asked(proxy))[0] == 200
    await engine.stop()
    for _ in range(5):
        status, seconds, retry = await asked(proxy)
        assert (status, retry) == (503, "1") and seconds < 1.0
    assert not proxy.plane.live.ready
    again = await FakeEngine().start(port)
    await until(lambda: proxy.plane.live.ready)
    assert (await asked(proxy))[0] == 200 and not proxy.plane.live.trouble
    await again.stop()


class Hanging:
    """Takes calls and never answers; ``healthy``: whether it answers health checks; ``well``: whether it answers calls, too."""

    def __init__(self) -> None:
        self.calls, self.checks = 0, 0
        self.healthy = self.well = False

    async def __call__(self, reader, writer) -> None:
        while True:
            head = await read_request(reader)
            if head.startswith(b"GET /health "):
                self.checks += 1
                if self.healthy:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            else:
                self.calls += 1
                if self.well:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")


async def test_an_engine_that_hangs_keeps_nobody_waiting_twice(start, serve):
    engine = Hanging()
    proxy = await start(engine={"urls": [await serve(engine)]}, proxy={"upstream_timeout": 1.0})
    assert (await asked(proxy))[0] == 504
    for _ in range(10):
        status, seconds, retry = await asked(proxy)
        assert (status, retry) == (503, "1") and seconds < 0.5
    await until(lambda: engine.checks > 2)
    assert engine.calls == 1
    # it answers health checks, and hangs on: one call at a time finds that out
    engine.healthy = True
    await until(lambda: proxy.plane.live.ready)
    trial = asyncio.create_task(asked(proxy))
    await until(lambda: engine.calls == 2)
    assert [(await asked(proxy))[0] for _ in range(5)] == [503] * 5 and engine.calls == 2
    assert (await trial)[0] == 504
    engine.well = True
    await until(lambda: proxy.plane.live.ready)
    assert (await asked(proxy))[0] == 200
    results = await asyncio.gather(*(asked(proxy) for _ in range(5)))
    assert [status for status, _, _ in results] == [200] * 5 and not proxy.plane.live.trouble


async def test_health_checks_are_no_sign_that_calls_are_answered(start, serve):
    """And leave no connections behind."""
    engine = Hanging()
    engine.healthy = True
    url = await serve(engine)
    proxy = await start(engine={"urls": [url]})
    pool, live = proxy.plane.pools.of(url), proxy.plane.live
    heard = pool.heard
    for number in range(1, 4):
        live.mark_down(url)
        await until(lambda number=number: live.ready and engine.checks == number)
    proxy.plane.pools.sweep(pool.now + 1.0)
    assert pool.heard == heard and live.hangs.silent(url) and not pool.all
    assert not any(own.all for own in proxy.plane.probe._own.values())
    engine.well = True
    assert (await asked(proxy))[0] == 200
    proxy.plane.pools.sweep(pool.now + 1.0)
    assert not live.hangs.silent(url)


async def test_what_the_control_plane_knows_to_be_down_gets_no_calls(start, serve, fake):
    engine = Hanging()
    url = await serve(engine)
    proxy = await start(engine={"urls": [url]})
    state = {"models": {"tiny": {"base": "tiny", "live": "tiny"}}, "engines": [{"url": url, "ok": False, "loaded": []}]}
    proxy.plane.live.update(state)
    status, seconds, retry = await asked(proxy)
    assert (status, retry) == (503, "1") and seconds < 1.0 and engine.calls == 0
    engine.healthy = engine.well = True
    await until(lambda: proxy.plane.live.ready)
    assert (await asked(proxy))[0] == 200


async def test_with_another_engine_no_call_fails(start, fake):
    away = await FakeEngine().start()
    proxy = await start(engine={"urls": [away.url, fake.url]})
    await away.stop()
    for number in range(8):
        assert (await asked(proxy, **{"x-slipstream-episode": f"e{number}"}))[0] == 200
    assert len(fake.seen) == 8


async def test_a_slow_reply_of_an_engine_that_answers_others_is_no_hang(start, serve):
    async def mixed(reader, writer):
        while True:
            head = await read_request(reader)
            if b'"seed":1' not in head:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    proxy = await start(engine={"urls": [await serve(mixed)]}, proxy={"upstream_timeout": 2.0})
    slow = asyncio.create_task(post(proxy.url, {**ASK, "seed": 1}))
    while not slow.done():
        assert (await asked(proxy))[0] == 200
        await asyncio.sleep(0.2)
    assert (await slow)[0] == 504 and not proxy.plane.live.trouble and (await asked(proxy))[0] == 200


async def test_a_client_that_leaves_a_trial_frees_it(start, serve):
    engine = Hanging()
    url = await serve(engine)
    proxy = await start(engine={"urls": [url]})
    live = proxy.plane.live
    live.changed = lambda: None
    live.mark_down(url, hung=True)
    live.found(url)
    calls = asyncio.create_task(post(proxy.url, ASK))
    await until(lambda: engine.calls == 1)
    assert not live.ready
    calls.cancel()
    await until(lambda: live.ready)
