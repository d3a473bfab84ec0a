"""Load for an engine: streams from several processes, so that the client does not hold the figure."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

import aiohttp

PROCESSES = 8
CALLS = 2
"""Of each stream, so that not all end at once."""


@dataclass(frozen=True)
class Way:
    """Where the calls go, and how they ask. ``packed``: whether the plugin's member must be in the reply."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    more: dict[str, object] = field(default_factory=dict)
    packed: bool = False


@dataclass(frozen=True)
class Measured:
    """``tokens_per_second`` over all streams; ``bytes_per_call`` of the replies."""

    tokens_per_second: float
    failed: int
    bytes_per_call: int


async def _clients(way: Way, body: dict[str, object], count: int) -> tuple[int, int]:
    """(failed calls, bytes of all replies)."""
    failed = size = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal failed, size
        for _ in range(CALLS):
            async with session.post(f"{way.url}/v1/chat/completions", json=body, headers=way.headers) as reply:
                text = await reply.read()
            size += len(text)
            failed += reply.status != 200 or (b'"slipstream":{' in text) is not way.packed

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(count)))
    return failed, size


def _process(way: Way, body: dict[str, object], count: int, go: Event, out: Queue[tuple[int, int]]) -> None:
    go.wait()
    out.put(asyncio.run(_clients(way, body, count)))


def measure(way: Way, model: str, streams: int, tokens: int, *, stream: bool) -> Measured:
    """``CALLS`` calls of ``tokens`` tokens from each of ``streams`` clients."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": "hello there, say something long"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": stream,
        **way.more,
    }
    count = min(PROCESSES, streams)
    out: Queue[tuple[int, int]] = multiprocessing.Queue()
    go = multiprocessing.Event()
    processes = [
        multiprocessing.Process(target=_process, args=(way, body, streams // count, go, out)) for _ in range(count)
    ]
    for p in processes:
        p.start()
    time.sleep(1.0)  # all of them stand at the gate
    start = time.monotonic()
    go.set()
    found = [out.get() for _ in processes]
    seconds = time.monotonic() - start
    for p in processes:
        p.join()
    calls = streams // count * count * CALLS
    return Measured(calls * tokens / seconds, sum(f for f, _ in found), sum(n for _, n in found) // calls)
