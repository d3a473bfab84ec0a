"""What asking for ids and log-probabilities costs the engine: vLLM's own tokens a second with and without it, in alternating rounds.

    python benchmarks/proxy/injection.py URL MODEL [--rounds 5] [--streams 32] [--tokens 64]

Last line: one JSON object of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import aiohttp

INJECTED = {"return_token_ids": True, "logprobs": True}


async def call(
    session: aiohttp.ClientSession, options: argparse.Namespace, *, stream: bool, more: dict[str, Any]
) -> int:
    """Completion tokens of one call."""
    body: dict[str, Any] = {
        "model": options.model,
        "messages": [{"role": "user", "content": "when is the dentist for dana"}],
    }
    body |= {"temperature": 1.0, "max_tokens": options.tokens, "ignore_eos": True, "stream": stream, **more}
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with session.post(f"{options.url}/v1/chat/completions", json=body) as reply:
        text = await reply.read()
    if reply.status != 200:
        raise SystemExit(f"{reply.status} {text[:500]!r}")
    if stream:
        text = next(line for line in reversed(text.split(b"\n")) if b'"usage":{' in line).removeprefix(b"data: ")
    return int(json.loads(text)["usage"]["completion_tokens"])


async def rate(
    session: aiohttp.ClientSession, options: argparse.Namespace, *, stream: bool, more: dict[str, Any]
) -> float:
    """Tokens a second of ``streams`` clients that each make ``calls`` calls."""

    async def client() -> int:
        return sum([await call(session, options, stream=stream, more=more) for _ in range(options.calls)])

    start = time.monotonic()
    tokens = sum(await asyncio.gather(*(client() for _ in range(options.streams))))
    return tokens / (time.monotonic() - start)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await rate(session, options, stream=False, more=INJECTED)
        for _ in range(options.rounds):
            for form, stream in (("whole", False), ("stream", True)):
                bare = await rate(session, options, stream=stream, more={})
                injected = await rate(session, options, stream=stream, more=INJECTED)
                found.setdefault(f"{form}_bare", []).append(bare)
                found.setdefault(f"{form}_injected", []).append(injected)
                found.setdefault(f"{form}_ratio", []).append(injected / bare)
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
