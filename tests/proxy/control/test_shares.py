"""One hostile key of an agent does not starve the others' rewards, nor the operator."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from slipstream_proxy.control.shared import shares as shares_module
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.shares import STREAMS_OF_KEY, KeyShares, WaitingLine

HOSTILE = {"key": "hostile", "scopes": ["inference"]}


async def test_slow_searches_and_reads_of_one_key_hold_up_nobody_else(plane, monkeypatch):
    for n in range(3):
        await plane.call(f"e{n}", key="other")
    await plane.seen("e2", key="other")
    open_again = threading.Event()
    page = plane.deps.store.episodes.page

    def slow(wanted):
        if wanted.key == "hostile":
            open_again.wait(60)
        return page(wanted)

    monkeypatch.setattr(plane.deps.store.episodes, "page", slow)
    hostile = [asyncio.create_task(plane.ask("GET", "/episodes", params={"q": "hello"}, **HOSTILE)) for _ in range(60)]
    hostile += [asyncio.create_task(plane.ask("GET", "/episodes", **HOSTILE)) for _ in range(100)]
    await asyncio.sleep(0.5)
    began = time.monotonic()
    assert (
        await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0}, key="other", scopes=["inference", "reward"])
    )[0] == 200
    assert (await plane.ask("GET", "/status"))[0] == 200
    assert (await plane.ask("GET", "/episodes", params={"q": "hello"}))[0] == 200, "the operator's search goes first"
    assert (await plane.ask("GET", "/episodes", params={"q": "hello"}, key="other", scopes=["inference"]))[0] == 200
    assert (await plane.ask("GET", "/episodes/e1", key="other", scopes=["inference"]))[0] == 200
    assert time.monotonic() - began < 5
    open_again.set()
    statuses = [status for status, _ in await asyncio.gather(*hostile)]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 9
    refused = next(body for status, body in [t.result() for t in hostile] if status == 429)
    assert refused["error"]["type"] == "too_many_requests" and "fewer at once" in refused["error"]["fix"]


async def test_streams_of_one_key_leave_room_for_the_operators(plane):
    replies = []
    for _ in range(STREAMS_OF_KEY + 5):
        replies.append(
            await plane.client.get("/slipstream/v1/events/stream", headers=plane.as_("hostile", ["inference"]))
        )
    assert [r.status for r in replies] == [200] * STREAMS_OF_KEY + [429] * 5
    mine = await plane.client.get("/slipstream/v1/events/stream", headers=plane.as_("-"))
    assert mine.status == 200
    for reply in (*replies, mine):
        reply.close()


async def test_a_line_goes_on_whoever_leaves_it(monkeypatch):
    shares, line = KeyShares(), WaitingLine("things", 1, 2, 0.2)
    order: list[str] = []

    async def use(name: str, seconds: float) -> None:
        async with shares.turn("k", line):
            order.append(name)
            await asyncio.sleep(seconds)

    first = asyncio.create_task(use("first", 0.1))
    await asyncio.sleep(0)
    leaves, stays = asyncio.create_task(use("leaves", 0)), asyncio.create_task(use("stays", 0.4))
    await asyncio.sleep(0)
    monkeypatch.setattr(shares_module, "REFUSAL_PAUSE_S", 0.0)
    with pytest.raises(Problem, match="run already"):
        await use("too many", 0)
    leaves.cancel()
    late = asyncio.create_task(use("late", 0))
    await asyncio.gather(first, stays)
    with pytest.raises(Problem):
        await late
    assert order == ["first", "stays"]
    async with shares.turn("k", line):
        pass
    assert not shares._running and not shares._waiting, "nothing is left of a key that asks no more"


async def test_a_key_s_searches_rest_for_longer_than_they_took():
    shares, line = KeyShares(), WaitingLine("searches", 1, 2, 5.0, rests=3.0)
    times = []
    for _ in range(2):
        async with shares.turn("k", line):
            times.append(time.monotonic())
            await asyncio.sleep(0.1)
            times.append(time.monotonic())
    assert times[2] - times[1] >= 0.28
    async with shares.turn("other", line):
        assert time.monotonic() - times[3] < 0.28
    await asyncio.sleep(0.5)
    assert not shares._running and not shares._waiting


async def test_a_key_that_asks_again_and_again_is_refused_in_its_own_time():
    """Refusals as fast as it asks took a core: 240 streams too many, each asked for again at once."""
    shares = KeyShares()
    asked = [asyncio.create_task(asyncio.wait_for(_too_many(shares), 0.3)) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(STREAMS_OF_KEY):
            await stack.enter_async_context(shares.stream("other"))
    assert [type(e) for e in await asyncio.gather(*asked, return_exceptions=True)] == [TimeoutError] * 3
    assert not shares._pausing and not shares._streams, "nothing is left of who went away"


async def _too_many(shares: KeyShares) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(STREAMS_OF_KEY + 1):
            await stack.enter_async_context(shares.stream("k"))
