"""What capture costs a running vLLM: tokens a second bare, with ids and log-probabilities as JSON, and packed by the plugin.

    python benchmarks/engine/capture.py URL MODEL [--ways bare,packed] [--streams 8,64,256] [--tokens 256] [--rounds 2]

The load comes from eight processes, so that the client does not hold the figure. A line a measurement; the last line is one JSON object
with the ratio to ``bare`` of each way, number of streams and form (medians of the rounds).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections import defaultdict
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

import aiohttp

WAYS: dict[str, dict[str, object]] = {
    "bare": {},
    "json": {"return_token_ids": True, "logprobs": True},
    "packed": {"slipstream_capture": 1},
}
PROCESSES = 8
CALLS = 2
"""Of each client, so that not all streams end at once."""


async def clients(url: str, body: dict[str, object], count: int, packed: bool) -> tuple[int, int]:
    """(failed calls, bytes of all replies)."""
    failed = size = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal failed, size
        for _ in range(CALLS):
            async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
                text = await reply.read()
            size += len(text)
            failed += reply.status != 200 or (b'"slipstream":{' in text) is not packed

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(count)))
    return failed, size


def process(
    url: str, body: dict[str, object], count: int, packed: bool, go: Event, out: Queue[tuple[int, int]]
) -> None:
    go.wait()
    out.put(asyncio.run(clients(url, body, count, packed)))


def measure(options: argparse.Namespace, way: str, streams: int, *, stream: bool) -> dict[str, object]:
    body: dict[str, object] = {
        "model": options.model,
        "messages": [{"role": "user", "content": "hello there, say something long"}],
        "max_tokens": options.tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": stream,
        **WAYS[way],
    }
    count = min(PROCESSES, streams)
    out: Queue[tuple[int, int]] = multiprocessing.Queue()
    go = multiprocessing.Event()
    arguments = (options.url, body, streams // count, way == "packed", go, out)
    processes = [multiprocessing.Process(target=process, args=arguments) for _ in range(count)]
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
    return {
        "way": way,
        "streams": streams,
        "form": "stream" if stream else "whole",
        "tokens_per_second": round(calls * options.tokens / seconds),
        "failed": sum(f for f, _ in found),
        "bytes_per_call": sum(n for _, n in found) // calls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of vLLM, without /v1")
    parser.add_argument("model")
    parser.add_argument("--ways", default="bare,packed")
    parser.add_argument("--streams", default="8,64,256")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    ways = options.ways.split(",")
    rates: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    failed = 0
    measure(options, "bare", 64, stream=False)  # what compiles at the first call
    for streams in (int(n) for n in options.streams.split(",")):
        for stream in (False, True):
            for _ in range(options.rounds):
                for way in ways:
                    found = measure(options, way, streams, stream=stream)
                    print(json.dumps(found), flush=True)
                    rates[way, streams, str(found["form"])].append(float(str(found["tokens_per_second"])))
                    failed += int(str(found["failed"]))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {
        f"{way}_{form}_{streams}": round(value / medians["bare", streams, form], 3)
        for (way, streams, form), value in medians.items()
        if way != "bare"
    }
    print(json.dumps({"failed": failed, **ratios}))


if __name__ == "__main__":
    main()
