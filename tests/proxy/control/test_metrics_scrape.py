from __future__ import annotations

import time

from tests.support.plane import until

from slipstream_proxy.control.status import status


async def test_a_slow_store_leaves_no_series_out(plane, monkeypatch):
    async def scrape() -> str:
        return await (await plane.client.get("/internal/metrics")).text()

    await plane.call("e1")
    await plane.seen("e1")
    monkeypatch.setattr(status, "LOOK_EVERY", 0.0)

    async def counted() -> bool:
        return "slipstream_stored_calls 1.0" in await scrape()

    await until(counted)
    real = plane.deps.store.statistics.counts

    def slow(now):
        time.sleep(3.0)
        return real(now)

    monkeypatch.setattr(plane.deps.store.statistics, "counts", slow)
    began = time.monotonic()
    text = await scrape()
    assert time.monotonic() - began < 2.0  # what the data plane waits
    for series in ("slipstream_stored_calls 1.0", 'slipstream_episodes{state="open"} 1.0', "slipstream_store_up 1.0"):
        assert series in text
