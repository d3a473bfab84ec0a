"""What the proxy adds to a call where many calls end in one moment and their clients call again at once, as an agent's rollouts do in lockstep.

    python benchmarks/proxy/lockstep.py [--streams 64] [--tokens 256] [--cycles 6] [--rounds 3] [--cases CASE,…]

The engine is a stand-in that answers when all of a cycle's requests have come, and sends one event to each stream in each step, with what
the plugin's own code packs. One worker has one core; load and engine share another. So ``--streams 64`` is a worker's part of 256 streams at
four workers. A case is FORM-EPISODES-DURABILITY: ``stream`` or ``whole``; ``named`` (a header names the episode) or ``untagged`` (the proxy
knows it by what was said); ``power``, ``process`` or ``none``. Cases take turns.

Columns: milliseconds from the engine's last byte to the first, middle and last of the next requests at the engine, without those of the same load
straight at the engine; the worker's CPU microseconds a call in that time (``turn_us``) and before it (``flow_us``); bytes a call in the
spool. ``none`` less ``process`` less ``power`` is what the write and the disk take. Compile first (``python -m slipstream_proxy.process.compiled``), as for
production. The last line is one JSON object with the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop
from conversation import Talk, dump, events, fresh, whole
from targets import OTHER_CORE, Target, start_slipstream

from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.process import compiled
from slipstream_vllm import capture

CASES = (
    "stream-untagged-power,stream-named-power,whole-untagged-power,"
    "stream-untagged-process,stream-named-process,stream-untagged-none,stream-named-none"
)
STEP = 0.008
"""Seconds between two events of a stream."""
HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
PROMPT = 40
Row = dict[str, float]


class Cycle:
    """All requests of a cycle, then all events of their streams in step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.waiting: list[asyncio.Transport] = []
        self.arrived: list[float] = []
        self.all_there = asyncio.Event()

    def arrive(self, transport: asyncio.Transport) -> None:
        self.arrived.append(time.perf_counter())
        self.waiting.append(transport)
        if len(self.waiting) == self.options.streams:
            self.all_there.set()

    def replies(self, *, stream: bool) -> list[list[bytes]]:
        """For each call what is sent in each step. Every call says something else."""
        made = []
        for _ in range(self.options.streams):
            talk = Talk("", prompt=fresh(PROMPT), sampled=fresh(self.options.tokens))
            packed = capture.Stream([])
            packed.prompts.append((0, talk.prompt))
            if stream:
                *most, last, done = [b"%x\r\n%b\r\n" % (len(e), e) for e in events(talk, packed)]
                made.append([*most, last + done + b"0\r\n\r\n"])
            else:
                body = whole(talk, packed)
                made.append([b""] * (self.options.tokens - 1) + [WHOLE % (len(body), body)])
        return made

    async def answer(self, *, stream: bool) -> float:
        """Send a reply to each; → when the last byte was sent."""
        replies = self.replies(stream=stream)
        transports, self.waiting, self.arrived = self.waiting, [], []
        self.all_there.clear()
        if stream:
            for transport in transports:
                transport.write(HEAD)
        due = time.perf_counter()
        for step in range(self.options.tokens):
            due += STEP
            if stream or step == self.options.tokens - 1:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                for transport, parts in zip(transports, replies, strict=True):
                    transport.write(parts[step])
        return time.perf_counter()


class EngineSide(asyncio.Protocol):
    def __init__(self, cycle: Cycle) -> None:
        self.cycle, self.data = cycle, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.data.startswith(b"GET"):
            self.transport.write(WHOLE % (2, b"{}"))
            self.data = b""
        elif (end := self.data.find(b"\r\n\r\n")) >= 0:
            low = self.data[:end].lower() + b"\r\n"
            at = low.find(b"content-length:") + 15
            if len(self.data) >= end + 4 + int(low[at : low.find(b"\r\n", at)]):
                self.data = b""
                self.cycle.arrive(self.transport)


class ClientSide(asyncio.Protocol):
    """Calls again as soon as its reply is whole, ``calls`` times."""

    def __init__(self, request: bytes, calls: int, *, stream: bool, named: str, over: asyncio.Future[None]) -> None:
        self.request, self.calls, self.stream, self.over, self.named = request, calls, stream, over, named
        self.length = 0
        self.size = -1
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.call()

    def call(self) -> None:
        self.calls -= 1
        self.size, self.length, self.tail = -1, 0, b""
        self.transport.write(self.request % self.named.encode())

    def data_received(self, data: bytes) -> None:
        self.length += len(data)
        if self.size < 0:
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"not answered: {data[:300]!r}")
            low, end = data.lower(), data.find(b"\r\n\r\n")
            at = low.find(b"content-length:", 0, end)
            self.size = 0 if at < 0 else end + 4 + int(low[at + 15 : low.find(b"\r\n", at)])
        self.tail = (self.tail + data)[-7:]
        if (self.size and self.length == self.size) or (not self.size and self.tail == b"\r\n0\r\n\r\n"):
            if self.calls:
                self.call()
            else:
                self.over.set_result(None)


def cpu(pid: int) -> float:
    """Seconds of all threads."""
    return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


async def run(options: argparse.Namespace, cycle: Cycle, case: str, port: int, proxy: Target | None) -> Row:
    """Medians over the cycles."""
    form, episodes, _ = case.split("-")
    body = {"model": "gpt-4o" if proxy else "m", "messages": [{"role": "user", "content": "say something long " * 3}]}
    text = dump(body | {"temperature": 1.0, "stream": form == "stream"}).encode()
    fields = b"x-slipstream-episode: %%b\r\n" if episodes == "named" else b"x-none: %%b\r\n"
    key = proxy.key.encode() if proxy else b"sk-none"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\nauthorization: Bearer %b\r\n"
    request = (head % (port, key)) + fields.replace(b"%%", b"%") + b"content-length: %d\r\n\r\n" % len(text) + text
    overs: list[asyncio.Future[None]] = [cycle.loop.create_future() for _ in range(options.streams)]
    for at, over in enumerate(overs):
        name = f"e{at}-{random.randrange(2**40)}" if episodes == "named" else ""

        def make(name: str = name, over: asyncio.Future[None] = over) -> ClientSide:
            return ClientSide(request, options.cycles + 1, stream=form == "stream", named=name, over=over)

        await cycle.loop.create_connection(make, "127.0.0.1", port)
    rows: list[Row] = []
    await cycle.all_there.wait()
    before = cpu(proxy.pid) if proxy else 0.0
    for left in range(options.cycles, -1, -1):
        ended = await cycle.answer(stream=form == "stream")
        middle = cpu(proxy.pid) if proxy else 0.0
        if not left:
            break
        await cycle.all_there.wait()
        after = cpu(proxy.pid) if proxy else 0.0
        at = sorted(cycle.arrived)
        row = {"first_ms": at[0] - ended, "middle_ms": at[len(at) // 2] - ended, "last_ms": at[-1] - ended}
        row = {k: v * 1e3 for k, v in row.items()}
        row |= {"turn_us": (after - middle) / len(at) * 1e6, "flow_us": (middle - before) / len(at) * 1e6}
        rows.append(row)
        before = after
    await asyncio.gather(*overs)
    found = {name: statistics.median(row[name] for row in rows[1:] or rows) for name in rows[0]}
    if proxy is not None:
        await asyncio.sleep(0.5)  # with ``none`` the last records may still be in memory
        found["spool_bytes"] = spooled(proxy, options.streams * (options.cycles + 1))
    return found


def spooled(proxy: Target, calls: int) -> float:
    """Bytes a call. What was counted is left in a segment that goes on, so the next case's calls are told by their number."""
    assert proxy.config is not None
    sizes = []
    for found in list_segments(proxy.config.spool_dir).values():
        for _, path in found:
            begin = 0
            for frame in read_segment(path):
                sizes.append(frame.end - begin)
                begin = frame.end
    if len(sizes) < calls:
        raise SystemExit(f"{calls - len(sizes)} calls were not recorded")
    return statistics.mean(sizes[-calls:])


def start_proxy(stack: contextlib.ExitStack, folder: Path, engine: str, durability: str) -> Target:
    """The worker reads from a file that the engine has the plugin, as it does where the control plane is away."""
    data = folder / durability
    data.mkdir(parents=True)
    live = {"engines": [{"url": engine, "ok": True, "loaded": [], "packed": True}], "models": {}}
    (data / "live.json").write_text(dump(live))
    return start_slipstream(stack, folder, engine, durability)


async def measure(options: argparse.Namespace) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    cases = options.cases.split(",")
    with tempfile.TemporaryDirectory(dir=options.dir) as name, contextlib.ExitStack() as stack:
        cycle = Cycle(options)
        server = await cycle.loop.create_server(lambda: EngineSide(cycle), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        engine = f"http://127.0.0.1:{port}"
        proxies = {d: start_proxy(stack, Path(name), engine, d) for d in {case.split("-")[2] for case in cases}}
        await asyncio.sleep(1.0)
        for number in range(options.rounds):
            bare = {
                f: await run(options, cycle, f"{f}-bare-none", port, None) for f in {c.split("-")[0] for c in cases}
            }
            for form, row in bare.items():
                found.setdefault(f"{form}-bare", []).append(row)
            for case in cases:
                form, _, durability = case.split("-")
                row = await run(options, cycle, case, proxies[durability].port, proxies[durability])
                row |= {name: row[name] - bare[form][name] for name in ("first_ms", "middle_ms", "last_ms")}
                found.setdefault(case, []).append(row)
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--cycles", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--dir", type=Path, help="where the spool lies (default: the machine's temporary folder)")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    uvloop.install()
    found = asyncio.run(measure(options))
    columns = ("first_ms", "middle_ms", "last_ms", "turn_us", "flow_us", "spool_bytes")
    print(f"{'case':26}" + "".join(f"{c:>13}" for c in columns))
    line: Row = {"compiled": (compiled.folder() / "ready").exists(), "streams": options.streams}
    for case, rows in found.items():
        values = {c: statistics.median(row.get(c, 0.0) for row in rows) for c in columns}
        print(f"{case:26}" + "".join(f"{values[c]:13,.1f}" for c in columns))
        line |= {f"{case}_{c}": round(v, 1) for c, v in values.items()}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
