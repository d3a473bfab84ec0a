"""Engines that are down get no calls; a health check finds them again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.wire.receiver import Receiver

if TYPE_CHECKING:
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.engines.pools import Pools
    from slipstream_proxy.data.wire.http1 import ResponseHead
    from slipstream_proxy.data.wire.receiver import Sent
    from slipstream_proxy.data.wire.upstream import Pool

PROBE_INTERVAL_S: Final = 0.5
"""Seconds between two checks of an engine."""
PROBE_TIMEOUT_S: Final = 2.0
"""Seconds in which an engine has to answer one."""


class HealthCheck(Receiver):
    """One health check. An answer below 500 says that the engine is up."""

    __slots__ = ("_done", "_sent", "up")

    def __init__(self, done: asyncio.Future[bool]) -> None:
        self._done = done
        self._sent: Sent | None = None
        self.up = False

    def start(self, pool: Pool, key: bytes, path: str) -> None:
        """``key``: the header line with the engine's own key. ``path``: of the check."""
        at = pool.prefix + path.encode()
        line = b"GET %b HTTP/1.1\r\nHost: %b\r\nContent-Length: 0\r\n" % (at, pool.authority)
        self._sent = pool.send(b"%b%b\r\n" % (line, key), self, fresh=True)

    def on_headers_complete(self, head: ResponseHead) -> None:
        self._end(up=head.status < 500)

    def on_body(self, data: bytes) -> None:
        """What it says does not matter."""

    def on_message_complete(self) -> None:
        self._sent = None

    def on_error(self, why: str, *, kind: str) -> None:
        self._sent = None
        self._end(up=False)

    def _end(self, *, up: bool) -> None:
        if not self._done.done():
            self._done.set_result(up)

    def pause(self) -> None:
        """Its answer is short."""

    def resume(self) -> None:
        """It was not paused."""

    def drop(self) -> None:
        if self._sent is not None:
            self._sent.drop()


class EngineProbe:
    """Checks the engines of one worker while any of them is down."""

    def __init__(self, live: LiveView, pools: Pools) -> None:
        self._live, self._pools = live, pools
        self._own: dict[str, Pool] = {}
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Something may have changed."""
        if self._live.lost() and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while lost := self._live.lost():
            found = await asyncio.gather(*(self._check(url) for url in lost))
            for url, up in zip(lost, found, strict=True):
                if up:
                    self._live.found(url)
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def _check(self, url: str) -> bool:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        check = HealthCheck(done)
        pool = self._own.get(url)
        if pool is None:
            pool = self._own[url] = self._pools.separate(url)
        try:
            check.start(pool, self._pools.engine_key(url), self._live.health_of(url))
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await done
        except TimeoutError:
            return False
        finally:
            check.drop()
            for connection in list(pool.all):
                connection.drop()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
