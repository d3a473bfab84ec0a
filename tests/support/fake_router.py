"""A router before engines: each request goes to the next one, whatever its path. It keeps bytes, or rewrites chat bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Self

import aiohttp
from aiohttp import web


class FakeRouter:
    def __init__(self, urls: Sequence[str], *, lists: bool = False, drops: Sequence[str] = ()) -> None:
        """``lists``: it tells its workers. ``drops``: fields of bodies that it does not know."""
        self.urls, self.lists, self.drops = list(urls), lists, drops
        self.sessions: list[tuple[str, str]] = []
        """(path, X-Session-ID) of each request."""
        self._turn = 0

    async def start(self) -> Self:
        self._http = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._send_on)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _send_on(self, request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.Response()
        if request.path == "/list_workers" and self.lists:
            return web.json_response({"urls": self.urls})
        self.sessions.append((request.path, request.headers.get("X-Session-ID", "")))
        self._turn += 1
        body = await request.read()
        if body and self.drops:
            body = json.dumps({k: v for k, v in json.loads(body).items() if k not in self.drops}).encode()
        url = self.urls[self._turn % len(self.urls)] + request.path_qs
        headers = {"content-type": "application/json"}
        try:
            async with self._http.request(request.method, url, data=body or None, headers=headers) as reply:
                return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)
        except aiohttp.ClientError as e:
            return web.Response(status=503, text=f"no worker: {e}")
