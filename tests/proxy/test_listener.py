"""What is looked after once a second."""

from __future__ import annotations

import asyncio

import aiohttp
from tests.proxy.conftest import eventually
from tests.proxy.test_relay import ASK

from slipstream_proxy.data.fastpath import Handler


async def test_what_runs_is_counted(start, fake):
    proxy = await start()
    fake.hold = asyncio.Event()
    values = proxy.plane.metrics.values
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.post(proxy.url + "/v1/chat/completions", json=ASK))
        await eventually(lambda: values.get(("slipstream_in_flight", "")) == 1)
        assert values[("slipstream_connections", "")] >= 1
        fake.hold.set()
        assert (await asked).status == 200
    await eventually(lambda: values[("slipstream_in_flight", "")] == 0 and values[("slipstream_connections", "")] == 0)
    assert values[("slipstream_event_loop_lag_seconds", "")] >= 0.0


async def test_the_servers_connections_are_ours(start, fake):
    proxy = await start()
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await eventually(lambda: proxy.server.connections)
    (connection,) = proxy.server.connections
    assert isinstance(connection, Handler)
    writer.write(b"POST /v1/cha")
    await eventually(lambda: connection._ahead)
    proxy.server.check(asyncio.get_running_loop().time() + 10.0)
    assert not connection._close
    proxy.server.check(asyncio.get_running_loop().time() + 1000.0)
    await eventually(lambda: not proxy.server.connections)
    writer.close()
