"""What is looked after once a second."""

from __future__ import annotations

import asyncio

import aiohttp
from tests.support import until
from tests.support.dataplane import ASK

from slipstream_proxy.data.server.connection import KEEPALIVE_TIMEOUT
from slipstream_proxy.data.server.listener import Handler


async def test_what_runs_is_counted(start, fake):
    proxy = await start()
    fake.hold = asyncio.Event()
    values = proxy.plane.metrics.values
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.post(proxy.url + "/v1/chat/completions", json=ASK))
        await until(lambda: values.get(("slipstream_in_flight", "")) == 1)
        assert values[("slipstream_connections", "")] >= 1
        fake.hold.set()
        assert (await asked).status == 200
    await until(lambda: values[("slipstream_in_flight", "")] == 0 and values[("slipstream_connections", "")] == 0)
    assert values[("slipstream_event_loop_lag_seconds", "")] >= 0.0


async def test_a_head_that_does_not_end_costs_its_connection(start, fake):
    proxy = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await until(lambda: proxy.plane.state.connections)
    (client,) = proxy.plane.state.connections
    writer.write(b"POST /v1/cha")
    await until(lambda: client._ahead)
    now = asyncio.get_running_loop().time()
    proxy.server.check(now + 10.0)
    assert not client._discarding
    proxy.server.check(now + 1000.0)
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
    await until(lambda: not proxy.plane.state.connections)
    writer.close()


async def test_the_same_at_aiohttp(start, fake):
    proxy = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: lo")
    await until(lambda: proxy.server.connections)
    (connection,) = proxy.server.connections
    assert isinstance(connection, Handler) and not proxy.plane.state.connections
    proxy.server.check(asyncio.get_running_loop().time() + 1000.0)
    async with asyncio.timeout(60):
        got = await reader.read()
    assert got.startswith(b"HTTP/1.1 408") and b"connection: close" in got
    await until(lambda: not proxy.server.connected)
    writer.close()


async def test_a_connection_without_requests_is_closed(start, fake):
    proxy = await start()
    async with aiohttp.ClientSession() as session:
        async with session.post(proxy.url + "/v1/chat/completions", json=ASK) as reply:
            await reply.read()
        assert proxy.server.connected == 1
        now = asyncio.get_running_loop().time()
        proxy.server.check(now)
        proxy.server.check(now + KEEPALIVE_TIMEOUT - 1.0)
        await asyncio.sleep(0.05)
        assert proxy.server.connected == 1
        proxy.server.check(now + KEEPALIVE_TIMEOUT + 1.0)
        await until(lambda: not proxy.server.connected)
