"""What a worker's calls share."""

from __future__ import annotations

from tests.support import until
from tests.support.dataplane import ASK, post


async def test_calls_that_run_are_in_flight(start, fake):
    import asyncio

    fake.hold = asyncio.Event()
    proxy = await start()
    running = [asyncio.create_task(post(proxy.url, ASK)) for _ in range(3)]
    await until(lambda: len(proxy.plane.services.in_flight) == 3)
    fake.hold.set()
    assert [status for status, _, _ in await asyncio.gather(*running)] == [200] * 3
    assert not proxy.plane.services.in_flight
