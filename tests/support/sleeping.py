"""vLLM's sleep routes, as a fake engine has them."""

from __future__ import annotations

import asyncio

from aiohttp import web


class Sleeping:
    """``modes``: what it was put to sleep with. ``while_asleep``: calls that came in its sleep; as vLLM does, they wait for the end of it."""

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self.modes: list[str] = []
        self.wakes = 0
        self.while_asleep = 0
        self.fail = 0
        """Status that sleeping is answered with instead."""

    def add(self, app: web.Application) -> None:
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake)
        app.router.add_get("/is_sleeping", self._is)

    async def _sleep(self, request: web.Request) -> web.Response:
        if self.fail:
            return web.json_response({"error": "no"}, status=self.fail)
        self.modes.append(request.query_string)
        self.awake.clear()
        return web.json_response({"status": "sleeping"})

    async def _wake(self, _: web.Request) -> web.Response:
        self.wakes += 1
        self.awake.set()
        return web.json_response({"status": "awake"})

    async def _is(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": not self.awake.is_set()})

    async def wait(self) -> None:
        """Before a call is answered."""
        self.while_asleep += not self.awake.is_set()
        await self.awake.wait()
