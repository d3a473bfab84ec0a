"""The open store and its ingester. Whoever needs either asks here, so that both are replaced in one place.

And whether the database answers: PostgreSQL may go away or hang; then control routes answer 503 within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end

if TYPE_CHECKING:
    from slipstream_proxy.control.storage.ingester import Ingester
    from slipstream_proxy.store.store import Store

log = logging.getLogger(__name__)
PROBE_TIMEOUT = 0.5
"""Seconds in which the database must take a connection and answer on it."""
PROBE_EVERY, PROBE_EVERY_WHILE_DOWN = 5.0, 0.5
AWAY_PROBES = 2
"""Probes that fail one after the other until it is said: at a start this process itself may be too busy for one."""
STORE_WAIT_S = 0.3
"""Seconds that a request or a change waits for the store before it asks whether the database is there at all."""
Probe = Callable[[], Awaitable[None]]
"""Returns if the database answers, else raises."""


def probe_of(url: str) -> Probe | None:
    """None: the database is a file of this process, and there is nobody to ask."""
    if not url.startswith("postgres"):
        return None

    import psycopg  # here, so that its import takes no time from the first probe

    async def probe() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("SELECT 1")

    return probe


class StoreHealth:
    """``up`` is what the latest probe found. A probe runs now and then, and whenever a request is slow."""

    def __init__(self, probe: Probe | None) -> None:
        self.probe = probe
        self.up = True
        self._failed = 0
        """Probes in a row."""
        self._told = False
        """It was logged that the database is away."""
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
        self._failed = self._failed + 1 if why else 0
        if self._failed == AWAY_PROBES:
            log.error("the store's database is away: %s; the spool keeps calls and rewards", why)
            self._told = True
        elif not why and self._told:
            log.warning("the store's database is back")
            self._told = False
        self.up = not why
        return self.up

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                await self.check()
            await asyncio.sleep(PROBE_EVERY if self.up else PROBE_EVERY_WHILE_DOWN)


RETRY_HEADERS = {"retry-after": "5"}


class StoreHandle:
    """``current`` is None while the store cannot be opened: the spool keeps everything until it can."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.current: Store | None = None
        self.ingester: Ingester | None = None

    def replace(self, store: Store | None, ingester: Ingester | None) -> None:
        self.current, self.ingester = store, ingester

    @property
    def shared(self) -> bool:
        """Other proxies use it too. While it cannot be opened, its URL says so."""
        return self.current.shared if self.current is not None else self.url.startswith("postgres")

    def require(self) -> Store:
        """Raises ``Problem`` 503 while there is none."""
        if self.current is None:
            raise Problem(
                503, "the store cannot be opened; the spool keeps calls and rewards until it can", headers=RETRY_HEADERS
            )
        return self.current
