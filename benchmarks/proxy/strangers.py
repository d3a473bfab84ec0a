"""Do strangers slow the calls and rewards of others? A whole proxy at a soft limit of 1,024 open files, quiet and beset in turns.

    python -m benchmarks.proxy.strangers [--turns 4] [--seconds 10]

Three kinds beset it: ``silent`` (2,000 connections that send nothing and come back when they are closed), ``slow`` (2,000 streams that are read at
ten bytes a second) and ``key`` (one key for calls alone: 256 event streams, 60 searches at once and calls as fast as they are answered). Another
key's agent calls and rewards meanwhile, one after the other. Each kind has its own quiet turns beside its own beset ones, so that other work on
the machine falls on both. The last line is one JSON object: milliseconds of the 99th percentile, quiet and beset, their ratio, and failures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from benchmarks.harness import API, ROOT, child_env, free_port, quantile, report
from benchmarks.proxy.stand_in import answer, serve
from tests.support.running import Running, run_settings

from slipstream_proxy.keys import Keys

COUNT = 2000
STREAMS, SEARCHES, CALLS = 256, 60, 8
SOFT_LIMIT_FILES = 1024
P99 = 0.99
REPLY_BYTES = 2**19
SLOW_READ_S = 1.0
RAMP_S = 15.0
"""Over which strangers come: all at once they would keep the one engine busy, and that is not what is measured."""
SETTLE_S = 3.0
"""After strangers have come or gone, before the next turn is measured."""
BASE = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


# --- the engine --------------------------------------------------------------------------------------------------------------------


def event(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, "token_ids": [7], "logprobs": {"content": [{"token": text, "logprob": -0.1}]}}  # fmt: skip
    return b"data: " + json.dumps({**BASE, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


LARGE = event("word " * 20) * (REPLY_BYTES // len(event("word " * 20)))


SMALL = event("hi")
START = b"data: " + json.dumps({**BASE, "choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_token_ids": [1, 2]}).encode() + b"\n\n"  # fmt: skip
END = event(".", "stop") + b"data: [DONE]\n\n"
STORY, SHORT = (answer(START + part + END, b"text/event-stream") for part in (LARGE, SMALL))


def reply_of(body: bytes) -> bytes:
    """A stream of a few events, or of half a megabyte where a text asks for it."""
    return STORY if b"a long story" in body else SHORT


# --- the strangers, in a process of their own --------------------------------------------------------------------------------------


def call_body(text: str) -> dict[str, Any]:
    return {"model": "m", "stream": True, "temperature": 1.0, "messages": [{"role": "user", "content": text}]}


async def silent(port: int, _: str) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                await reader.read()
        await asyncio.sleep(0.5)


async def slow(port: int, secret: str) -> None:
    body = json.dumps(call_body("a long story")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\nContent-Length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_sendall(sock, head.encode() + body)
            while await loop.sock_recv(sock, 10):
                await asyncio.sleep(SLOW_READ_S)
        await asyncio.sleep(0.5)


async def hostile(port: int, secret: str) -> None:
    url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def again(method: str, path: str, **options: Any) -> None:
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                    async with session.request(method, url + path, **options) as r:
                        await r.read()
                    if r.status >= 400:
                        await asyncio.sleep(0.05)

        forever = aiohttp.ClientTimeout(total=None)
        jobs = [again("GET", f"{API}/events/stream", timeout=forever) for _ in range(STREAMS)]
        jobs += [again("GET", f"{API}/episodes?q=word") for _ in range(SEARCHES)]
        jobs += [again("POST", "/v1/chat/completions", json=call_body("fast")) for _ in range(CALLS)]
        await asyncio.gather(*jobs)


KINDS = {"silent": (silent, COUNT), "slow": (slow, COUNT), "key": (hostile, 1)}


async def beset(kind: str, port: int, secret: str) -> None:
    what, count = KINDS[kind]

    async def come(number: int) -> None:
        await asyncio.sleep(RAMP_S * number / count)
        await what(port, secret)

    await asyncio.gather(*(come(number) for number in range(count)))


# --- the others, who are measured --------------------------------------------------------------------------------------------------


class Others:
    """One key's agent: a call and its reward after the other."""

    def __init__(self, url: str, secret: str) -> None:
        self.url, self.headers = url, {"authorization": f"Bearer {secret}"}
        self.failed: Counter[str] = Counter()
        self.number = 0

    async def measure(self, session: aiohttp.ClientSession, seconds: float) -> dict[str, list[float]]:
        """Seconds that each call and each reward took."""
        took: dict[str, list[float]] = {"calls": [], "rewards": []}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.number += 1
            name = f"other-{self.number}"
            took["calls"].append(await self.one(session, "/v1/chat/completions", call_body("hello"), name))
            took["rewards"].append(await self.one(session, f"{API}/episodes/{name}/rewards", {"value": 1.0}, name))
            await asyncio.sleep(0.01)
        return took

    async def one(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any], name: str) -> float:
        began = time.monotonic()
        headers = {**self.headers, "x-slipstream-episode": name}
        try:
            async with session.post(self.url + path, json=body, headers=headers) as r:
                await r.read()
            if r.status != 200:
                self.failed[str(r.status)] += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            self.failed[type(e).__name__] += 1
        return time.monotonic() - began


def child(kind: str, port: str, secret: str = "") -> subprocess.Popen[bytes]:
    """This program, as the engine or as strangers."""
    command = [sys.executable, "-m", "benchmarks.proxy.strangers", "--as", kind, port, secret]
    return subprocess.Popen(command, cwd=ROOT, env=child_env())


@contextlib.contextmanager
def proxy(folder: Path, engine: int) -> Iterator[Running]:
    """The proxy, at a soft limit of 1,024 open files; the hard one is the machine's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tree = {
        "engine": {"name": "m", "kind": "vllm", "urls": [f"http://127.0.0.1:{engine}"]},
        "proxy": {"port": 0},
        "gate": {"holdout": 0.0},
    }
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT_FILES, hard))
    with run_settings(folder, tree) as running:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield running


async def turns(others: Others, session: aiohttp.ClientSession, kind: str, secret: str, options: argparse.Namespace) -> dict[str, Any]:  # fmt: skip
    took: dict[str, dict[str, list[float]]] = {when: {"calls": [], "rewards": []} for when in ("quiet", "beset")}
    ratios: dict[str, list[float]] = {"calls": [], "rewards": []}
    port = others.url.rpartition(":")[2]
    others.failed.clear()
    for _ in range(options.turns):
        quiet = await others.measure(session, options.seconds)
        process = child(kind, port, secret)
        try:
            await asyncio.sleep((RAMP_S if KINDS[kind][1] > 1 else 0.0) + SETTLE_S)
            loud = await others.measure(session, options.seconds)
        finally:
            process.kill()
            process.wait()
        await asyncio.sleep(SETTLE_S)
        for what, each in ratios.items():
            took["quiet"][what] += quiet[what]
            took["beset"][what] += loud[what]
            each.append(quantile(loud[what], P99) / quantile(quiet[what], P99))
    found: dict[str, Any] = {"failed": dict(others.failed), "load": round(os.getloadavg()[0], 1)}
    for what, each in ratios.items():
        quiet_ms, loud_ms = (round(1000 * quantile(took[when][what], P99), 1) for when in ("quiet", "beset"))
        found[what] = {
            "n": [len(took[when][what]) for when in ("quiet", "beset")],
            "p50_ms": [round(1000 * quantile(took[when][what], 0.5), 1) for when in ("quiet", "beset")],
            "p99_ms": [quiet_ms, loud_ms],
            "ratio": round(loud_ms / quiet_ms, 2),
            "ratios_of_turns": [round(r, 2) for r in sorted(each)],
        }
    return found


async def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    (folder / "data").mkdir()
    keys = Keys(folder / "data" / "keys.json")
    secrets = {"other": keys.add("other", ["inference", "reward"])[1], "key": keys.add("hostile", ["inference"])[1]}
    port = free_port()
    engine = child("engine", str(port))
    found: dict[str, Any] = {}
    try:
        timeout = aiohttp.ClientTimeout(total=60)
        with proxy(folder, port) as running:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                others = Others(running.url, secrets["other"])
                await others.measure(session, 3.0)
                for kind in options.only or KINDS:
                    found[kind] = await turns(others, session, kind, secrets["key"], options)
                    print(json.dumps({kind: found[kind]}), flush=True)
    finally:
        engine.kill()
        engine.wait()
    log = (folder / "proxy.log").read_text()
    return {**found, "capture_lost": "capture lost" in log, "too_many_files": "Too many open files" in log}


def main() -> None:
    if sys.argv[1:2] == ["--as"]:
        kind, port, secret = sys.argv[2:]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
        if kind == "engine":
            uvloop.run(serve(int(port), reply_of))
        else:
            uvloop.run(beset(kind, int(port), secret))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn's half")
    parser.add_argument("--only", nargs="*", choices=list(KINDS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipstream-strangers-") as folder:
        report(asyncio.run(run(Path(folder), options)), options.out)


if __name__ == "__main__":
    main()
