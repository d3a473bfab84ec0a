"""The live feed: server-sent events that name what has changed, so that a page reads it again."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from slipstream_proxy.control.http import Ctx, Query, Routes
from slipstream_proxy.control.problem import Problem

EVENT_STREAM = "text/event-stream"
MOST_READERS = 256
PATIENCE = 10.0
"""Seconds that a reader may take nothing before its connection ends."""


ROUTES = Routes()


@ROUTES.add("GET", "/events/stream", query=Query, result=EVENT_STREAM, endless=True)
async def get_stream(ctx: Ctx) -> web.StreamResponse:
    """Server-sent events, endless: call, episode, reward, group, adapter, step, status; their data are ids.
    `Last-Event-ID` goes on after that event; `reset` says that this is not possible: read all again.
    """
    feed = ctx.deps.feed
    if feed.readers >= MOST_READERS:
        why = f"{MOST_READERS} readers follow the events already"
        raise Problem(503, why, fix="close a page, or poll", headers={"retry-after": "30"})
    headers = {"content-type": EVENT_STREAM, "cache-control": "no-store", "x-accel-buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(ctx.request)
    key = None if ctx.caller.sees_all else ctx.caller.key
    feed.readers += 1
    try:
        with ctx.deps.endless.one(), contextlib.suppress(ConnectionError):
            async with contextlib.aclosing(feed.lines(ctx.request.headers.get("last-event-id"), key)) as lines:
                async for text in lines:
                    await asyncio.wait_for(response.write(text), PATIENCE)
    except TimeoutError:
        if ctx.request.transport is not None:
            ctx.request.transport.abort()  # what it has not taken is not kept for it
    finally:
        feed.readers -= 1
    return response
