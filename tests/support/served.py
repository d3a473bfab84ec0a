"""An aiohttp application beside the test, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading

from aiohttp import web


class Served:
    """An aiohttp application in a thread of its own, on a free port: ``with Served(app) as url``."""

    def __init__(self, app: web.Application, port: int = 0, *, host: str = "127.0.0.1", cancels: bool = False) -> None:
        """``cancels``: a handler ends where its client goes away."""
        self.app, self.host, self.port, self.cancels = app, host, port, cancels
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self.app, access_log=None, shutdown_timeout=0.1, handler_cancellation=self.cancels)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, self.host, self.port)
        self._loop.run_until_complete(site.start())
        self.url = f"http://{self.host}:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def __enter__(self) -> str:
        self._thread.start()
        if not self._ready.wait(60):
            raise TimeoutError("the server did not start")
        return self.url

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
