"""Episodes of a file on their way in: many at once, because each waits for its commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from slipstream.backoff import Backoff
from slipstream.client import AsyncClient
from slipstream.errors import ApiError
from slipstream.operate.logs import Entry
from slipstream.operate.progress import Progress

BUSY = (0, 429, 502, 503, 504)
"""Statuses that another try may better; 0: nobody answered."""
PATIENCE = 20.0
AT_ONCE = 64
"""Requests under way. The store commits what has arrived together."""


async def patiently(send: Callable[[], Awaitable[None]]) -> None:
    """Again while the proxy is busy or away: sending twice changes nothing.

    Raises ``ApiError`` for a refusal, or after ``PATIENCE``.
    """
    backoff, end = Backoff(0.1, 5.0), time.monotonic() + PATIENCE
    while True:
        try:
            return await send()
        except ApiError as e:
            if e.status not in BUSY or time.monotonic() + backoff.pause > end:
                raise
            await backoff.sleep()


async def upload(client: AsyncClient, entries: Iterator[Entry]) -> int:
    """Send them all; returns how many episodes.

    The first that is refused ends it: raises ``ApiError`` with its place in the file.
    """
    progress = Progress()
    done = 0

    async def work() -> None:
        nonlocal done
        for entry in entries:  # shared by all workers: each takes the next
            send = client.restore_episode if entry.whole else client.import_episode
            try:
                for body in entry.bodies:
                    await patiently(partial(send, body))
            except ApiError as e:
                e.args = (f"{entry.where}: {e}",)
                raise
            done += 1
            progress.update("import", entry.share, 1.0, episodes=done)

    workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return done
