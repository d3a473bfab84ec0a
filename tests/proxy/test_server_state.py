"""What connections share."""

from __future__ import annotations

import asyncio

from tests.support import until
from tests.support.dataplane import ASK, post


async def test_connections_are_counted_and_limits_are_the_settings(start, fake):
    proxy = await start(proxy={"header_limit": 9000, "body_limit": 2000})
    state = proxy.plane.state
    assert (state.header_limit, state.body_limit, state.draining) == (9000, 2000, False)
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await until(lambda: len(state.connections) == 1)
    writer.close()
    await until(lambda: not state.connections)


async def test_while_it_drains_a_reply_closes_its_connection(start, fake):
    proxy = await start()
    proxy.plane.state.draining = True
    _, headers, _ = await post(proxy.url, ASK)
    assert headers["connection"] == "close"
