"""Does the store's database answer? PostgreSQL may go away or hang; then control routes answer 503 within a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from slipstream_proxy.control.threads import end

log = logging.getLogger(__name__)
PROBE_TIMEOUT = 0.5
"""Seconds in which the database must take a connection and answer on it."""
PROBE_EVERY, PROBE_EVERY_WHILE_DOWN = 5.0, 0.5
PATIENCE = 0.3
"""Seconds that a request or a change waits for the store before it asks whether the database is there at all."""
Probe = Callable[[], Awaitable[None]]
"""Returns if the database answers, else raises."""


def probe_of(url: str) -> Probe | None:
    """None: the database is a file of this process, and there is nobody to ask."""
    if not url.startswith("postgres"):
        return None

    async def probe() -> None:
        import psycopg

        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("SELECT 1")

    return probe


class StoreHealth:
    """``up`` is what the latest probe found. A probe runs now and then, and whenever a request is slow."""

    def __init__(self, probe: Probe | None) -> None:
        self.probe = probe
        self.up = True
        self._probing: asyncio.Task[bool] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self.probe is not None:
            self._tasks = [asyncio.create_task(self._run(), name="store health")]

    async def stop(self) -> None:
        await end([*self._tasks, *([self._probing] if self._probing else [])])

    async def check(self) -> bool:
        """Probe now; whoever asks meanwhile shares the answer."""
        if self.probe is None:
            return True
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe(self.probe), name="store probe")
        return await asyncio.shield(self._probing)

    async def _probe(self, probe: Probe) -> bool:
        why = ""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await probe()
        except TimeoutError:
            why = f"no answer within {PROBE_TIMEOUT:g} s"
        except Exception as e:
            why = (str(e).strip() or type(e).__name__).splitlines()[0]
        if self.up and why:
            log.error("the store's database is away: %s; the spool keeps calls and rewards", why)
        elif not self.up and not why:
            log.warning("the store's database is back")
        self.up = not why
        return self.up

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                await self.check()
            await asyncio.sleep(PROBE_EVERY if self.up else PROBE_EVERY_WHILE_DOWN)
