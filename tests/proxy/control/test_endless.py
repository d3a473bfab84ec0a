from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from slipstream_proxy.control.api.app import make_app
from slipstream_proxy.control.storage.feed import EndlessReplies

PATIENT = 120.0


@pytest.mark.parametrize("path", ["/internal/live", "/slipstream/v1/events/stream"])
async def test_a_server_that_stops_does_not_wait_for_them(plane, path):
    server = TestServer(make_app(plane.deps, plane.control.plugins))
    await server.start_server(shutdown_timeout=PATIENT)
    async with TestClient(server) as client, client.get(path, headers=plane.as_()) as reply:
        assert reply.status == 200
        await asyncio.wait_for(server.close(), PATIENT / 4)
        assert plane.deps.feed.readers == 0


async def test_other_replies_are_finished(plane):
    began, answer = asyncio.Event(), asyncio.Event()
    replies = EndlessReplies()

    async def slow(_: web.Request) -> web.Response:
        began.set()
        await answer.wait()
        return web.Response(text="whole")

    app = web.Application()
    app.on_shutdown.append(replies.end)
    app.router.add_get("/", slow)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=PATIENT)
    async with TestClient(server) as client:
        asking = asyncio.create_task(client.get("/"))
        await began.wait()
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.05)
        answer.set()
        assert await (await asking).text() == "whole"
        await closing


async def test_one_that_ended_by_itself_is_forgotten():
    replies = EndlessReplies()

    async def reply() -> str:
        with replies.one():
            await asyncio.sleep(0)
        await replies.end()
        await asyncio.sleep(0)
        return "not cancelled"

    assert await asyncio.create_task(reply()) == "not cancelled"
