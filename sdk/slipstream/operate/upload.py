"""Episodes of a file on their way in: many at once, because each waits for its commit."""

from __future__ import annotations

import asyncio
import json
import re
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
AT_ONCE = 16
"""Requests under way. The store commits what has arrived together."""
BATCH, BATCH_BYTES = 64, 4 * 2**20
"""Episodes of one request, and their JSON."""
IN_BATCH = re.compile(r"body\.(?:episodes|conversations)\.(\d+)(?:\.|$)")


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


def together(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Episodes in batches for one request each; one with several histories by itself."""
    batch: list[Entry] = []
    weight = 0
    for entry in entries:
        size = len(json.dumps(entry.bodies[0])) if entry.whole or len(entry.bodies) == 1 else BATCH_BYTES
        if batch and (weight + size > BATCH_BYTES or len(batch) >= BATCH or entry.whole != batch[0].whole):
            yield batch
            batch, weight = [], 0
        batch.append(entry)
        weight += size
    if batch:
        yield batch


def place_of(error: ApiError, batch: list[Entry]) -> str:
    """Where in the file stands what was refused."""
    named = IN_BATCH.match(error.field or "")
    return batch[int(named.group(1)) if named else 0].where


async def send(client: AsyncClient, batch: list[Entry]) -> None:
    """Raises ``ApiError`` with the place in the file."""
    first = batch[0]
    try:
        if len(batch) > 1:
            many = client.restore_episodes if first.whole else client.import_episodes
            await patiently(partial(many, [entry.bodies[0] for entry in batch]))
            return
        for body in first.bodies:
            await patiently(partial(client.restore_episode if first.whole else client.import_episode, body))
    except ApiError as e:
        e.args = (f"{place_of(e, batch)}: {e}",)
        raise


async def upload(client: AsyncClient, entries: Iterator[Entry], progress: Progress | None = None) -> int:
    """Send them all; returns how many episodes.

    The first that is refused ends it: raises ``ApiError`` with its place in the file.
    """
    done = 0
    batches = together(entries)

    async def work() -> None:
        nonlocal done
        for batch in batches:  # shared by all workers: each takes the next
            await send(client, batch)
            done += len(batch)
            if progress is not None:
                progress.update("import", batch[-1].share, 1.0, episodes=done)

    workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return done
