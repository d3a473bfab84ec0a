"""What asking for ids and log-probabilities costs the engine: vLLM's own tokens a second with and without it, in alternating rounds.

    python benchmarks/proxy/injection.py URL MODEL [--rounds 5] [--streams 32] [--tokens 64] [--proxy]

``--proxy``: the same bare requests through Slipstream, too (one worker, ``durability = "power"``). Last line: one JSON object of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from targets import start_slipstream

INJECTED = {"return_token_ids": True, "logprobs": True}
Way = tuple[str, dict[str, str], dict[str, Any]]
"""Base URL, headers, what is added to a body."""


async def call(session: aiohttp.ClientSession, way: Way, options: argparse.Namespace, *, stream: bool) -> int:
    """Completion tokens of one call."""
    url, headers, more = way
    body: dict[str, Any] = {
        "model": options.model,
        "messages": [{"role": "user", "content": "when is the dentist for dana"}],
    }
    body |= {"temperature": 1.0, "max_tokens": options.tokens, "ignore_eos": True, "stream": stream, **more}
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
        text = await reply.read()
    if reply.status != 200:
        raise SystemExit(f"{reply.status} {text[:500]!r}")
    if stream:
        text = next(line for line in reversed(text.split(b"\n")) if b'"usage":{' in line).removeprefix(b"data: ")
    return int(json.loads(text)["usage"]["completion_tokens"])


async def rate(session: aiohttp.ClientSession, way: Way, options: argparse.Namespace, *, stream: bool) -> float:
    """Tokens a second of ``streams`` clients that each make ``calls`` calls."""

    async def client() -> int:
        return sum([await call(session, way, options, stream=stream) for _ in range(options.calls)])

    start = time.monotonic()
    tokens = sum(await asyncio.gather(*(client() for _ in range(options.streams))))
    return tokens / (time.monotonic() - start)


async def measure(options: argparse.Namespace, ways: dict[str, Way]) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        for way in ways.values():
            await rate(session, way, options, stream=False)
        for _ in range(options.rounds):
            for form, stream in (("whole", False), ("stream", True)):
                rates = {name: await rate(session, way, options, stream=stream) for name, way in ways.items()}
                for name, value in rates.items():
                    found.setdefault(f"{form}_{name}", []).append(value)
                    if name != "bare":
                        found.setdefault(f"{form}_{name}_ratio", []).append(value / rates["bare"])
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--proxy", action="store_true")
    options = parser.parse_args()
    ways: dict[str, Way] = {"bare": (options.url, {}, {}), "injected": (options.url, {}, INJECTED)}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        if options.proxy:
            ours = start_slipstream(stack, Path(name), options.url, "power", model=options.model)
            ways["proxy"] = (f"http://127.0.0.1:{ours.port}", {"authorization": f"Bearer {ours.key}"}, {})
        print(json.dumps(asyncio.run(measure(options, ways))))


if __name__ == "__main__":
    main()
