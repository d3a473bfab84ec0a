"""What accepts connections, and looks after them once a second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from slipstream_proxy.data.fastpath import Handler

if TYPE_CHECKING:
    from slipstream_proxy.data.plane import Plane


class Server(web.Server):
    """Makes a ``Handler`` for each connection."""

    def __init__(self, plane: Plane, handler: Any, **kwargs: Any) -> None:
        super().__init__(handler, **kwargs)
        self.plane = plane

    def __call__(self) -> RequestHandler:
        return Handler(self, loop=self._loop, **self._kwargs)

    def check(self, now: float) -> None:
        for connection in list(self.connections):
            if isinstance(connection, Handler):
                connection.check(now, self.plane.config.proxy.header_timeout)


async def sweep(server: Server) -> None:
    """Each second: time-outs, and how late this very loop runs."""
    plane = server.plane
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 1.0
        await asyncio.sleep(1.0)
        now = loop.time()
        plane.metrics.set("slipstream_event_loop_lag_seconds", max(0.0, now - due))
        plane.metrics.set("slipstream_connections", len(server.connections))
        plane.metrics.set("slipstream_in_flight", len(plane.in_flight))
        plane.metrics.set("slipstream_queued", sum(call.first is None for call in plane.in_flight))
        server.check(now)
        plane.sweep()
