"""Streams for a long time, while adapters are swapped, engines killed and clients go away: does anything leak, get stuck or get lost?

    python benchmarks/proxy/soak.py [--seconds 600] [--streams 256]
    python benchmarks/proxy/soak.py --seconds 3600 --episodes 1000000
    python benchmarks/proxy/soak.py --seconds 3600 --slow 200

A whole proxy (parent, control plane with DuckDB, one worker) in front of two engines that can be killed, behind a store that ``--episodes``
fills before. ``--slow`` clients more read one byte a second of replies of megabytes, and leave after ``SLOW_STAY`` seconds. The last line is one JSON
object: ``rss_growth_last_half`` of the worker, and the same of the control plane and the parent (the run's last tenth against the tenth behind its middle), ``rss_growth`` (last fifth of the run against the second), ``lost`` calls (begun to be answered and not in the store, whether they were
answered to the end, left by their client or broken off), ``stuck`` calls and connections (no byte for ``PATIENCE`` seconds, still running in the
proxy after the last client has gone, or still open then), ``lag_p99_ms`` of the worker's event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from targets import free_port

HERE = Path(__file__).parent
PATIENCE = 60.0
API = "/slipstream/v1"
RETRY = 0.5
OUTCOMES = ("answered", "aborted", "broken", "refused", "slow_left", "slow_broken")
SLOW_STAY = 300.0
SLOW_TOKENS = 20_000
"""Of some 330 bytes each, which the engine sends as fast as they are taken."""


@dataclass
class Told:
    """What the clients saw."""

    begun: set[str] = field(default_factory=set)
    """Calls of which there was a head."""
    outcomes: Counter[str] = field(default_factory=Counter)


@dataclass
class Samples:
    rss: list[tuple[float, int]] = field(default_factory=list)
    anon: list[tuple[float, int]] = field(default_factory=list)
    """Of the worker, without pages of files: the kernel takes those back and reads them again as it likes."""
    control: list[tuple[float, int]] = field(default_factory=list)
    parent: list[tuple[float, int]] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)


class Engines:
    """Processes that are killed and started again on their ports."""

    def __init__(self, count: int, tokens: int, gap: float) -> None:
        self.ports = [free_port() for _ in range(count)]
        self.more = [str(tokens), str(gap)]
        self.processes = [self._start(port) for port in self.ports]
        self.restarts = 0

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(HERE / "engine.py"), str(port), *self.more])

    async def restart(self, number: int) -> None:
        self.processes[number].kill()
        await asyncio.to_thread(self.processes[number].wait)
        await asyncio.sleep(1.0)
        self.processes[number] = self._start(self.ports[number])
        self.restarts += 1

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def rss(pid: int, name: str = "VmRSS") -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024
    return 0


def end(process: subprocess.Popen[bytes]) -> None:
    """A proxy that leads a session of its own, and what it has started."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def children(pid: int) -> dict[str, int]:
    """``data`` and ``control`` → pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                line = (folder / "cmdline").read_bytes().decode()
                found["data" if "data.worker" in line else "control"] = int(folder.name)
    return found


class Agent:
    """One stream after the other over one connection, as long as it holds; some are left in the middle."""

    def __init__(self, number: int, url: str, told: Told, stop: asyncio.Event, aborts: float) -> None:
        self.number, self.told, self.stop, self.aborts = number, told, stop, aborts
        self.port = int(url.rpartition(":")[2])
        self.rng = random.Random(number)
        self.connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.calls = 0

    async def run(self) -> None:
        while not self.stop.is_set():
            try:
                async with asyncio.timeout(PATIENCE):
                    outcome = await self.call()
            except TimeoutError:
                outcome = "stuck"
            except (OSError, asyncio.IncompleteReadError):
                outcome = "broken"
            self.told.outcomes[outcome] += 1
            if outcome != "answered":
                self.close()
            if outcome in ("broken", "refused"):
                await asyncio.sleep(RETRY)
        self.close()

    def close(self) -> None:
        if self.connection is not None:
            self.connection[1].close()
            self.connection = None

    def request(self) -> bytes:
        episode, turn = divmod(self.calls, 4)
        self.calls += 1
        messages = [{"role": "user", "content": f"turn {i} " + "x" * 200} for i in range(turn + 1)]
        body = json.dumps({"model": "gpt-4o", "messages": messages, "temperature": 1.0, "stream": True})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"x-slipstream-episode: soak-{self.number}-{episode}\r\nx-slipstream-task: task-{episode % 50}\r\n"
        head += "x-slipstream-done: true\r\n" if turn == 3 else ""
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def call(self) -> str:
        if self.connection is None:
            self.connection = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.connection
        writer.write(self.request())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if " 200 " not in head.partition("\r\n")[0]:
            return "refused"
        self.told.begun.add(head.partition("x-slipstream-call: ")[2].partition("\r\n")[0])
        leave = self.rng.randrange(1, 12) if self.rng.random() < self.aborts else -1
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            data = await reader.readexactly(size + 2)
            if size == 0:
                break
            if b'data: {"error"' in data:
                return "broken"
            leave -= 1
            if leave == 0:
                return "aborted"
        return "answered"


class Slow:
    """One reply after the other, of which it reads one byte a second."""

    def __init__(self, number: int, port: int, told: Told, stop: asyncio.Event) -> None:
        self.number, self.port, self.told, self.stop = number, port, told, stop
        self.rng = random.Random(number)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stop.is_set():
            with socket.socket() as mine:
                mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                mine.setblocking(False)
                with contextlib.suppress(OSError):
                    await loop.sock_connect(mine, ("127.0.0.1", self.port))
                    await self.call(loop, mine)
            await self.pause(RETRY)

    async def call(self, loop: asyncio.AbstractEventLoop, mine: socket.socket) -> None:
        messages = [{"role": "user", "content": f"slow {self.number} {self.rng.random()}"}]
        body = json.dumps({"model": "gpt-4o", "messages": messages, "max_tokens": SLOW_TOKENS, "stream": True})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await loop.sock_sendall(mine, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        found = b""
        while b"\r\n\r\n" not in found:
            data = await loop.sock_recv(mine, 1)
            if not data:
                return
            found += data
        if b" 200 " in found.partition(b"\r\n")[0]:
            self.told.begun.add(found.lower().partition(b"x-slipstream-call: ")[2].partition(b"\r\n")[0].decode())
        leaves = time.monotonic() + SLOW_STAY * self.rng.uniform(0.5, 1.0)
        while time.monotonic() < leaves and not self.stop.is_set():
            if not await loop.sock_recv(mine, 1):
                self.told.outcomes["slow_broken"] += 1
                return
            await self.pause(1.0)
        self.told.outcomes["slow_left"] += 1

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)


class Soak:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.engines = Engines(2, options.tokens, options.gap)
        self.told, self.samples = Told(), Samples()
        self.stop = asyncio.Event()
        self.swaps = 0
        self.url = ""

    def fill(self) -> None:
        """A store that has grown for long, before the proxy starts."""
        sys.path.insert(0, str(HERE.parent / "store"))
        from filling import fill

        from slipstream_proxy.store import open_store
        from slipstream_proxy.store.values import Rules

        (self.folder / "data").mkdir(parents=True)
        store = open_store(f"duckdb:///{self.folder}/data/slipstream.duckdb", Rules())
        try:
            fill(store, self.options.episodes)
        finally:
            store.close()

    def start(self) -> subprocess.Popen[bytes]:
        urls = [f"http://127.0.0.1:{port}" for port in self.engines.ports]
        config = self.folder / "slipstream.toml"
        config.write_text(
            f'data_dir = "{self.folder}/data"\n[engine]\nname = "m"\nurls = {json.dumps(urls)}\nhealth_interval = 0.5\n'
            f'[proxy]\nport = 0\ndurability = "{self.options.durability}"\n[models."gpt-*"]\ntrained = "m"\n[gate]\nholdout = 0.0\n'
            + (f'[store]\nmemory_limit = "{self.options.memory_limit}"\n' if self.options.memory_limit else "")
        )
        with (self.folder / "proxy.log").open("wb") as log:
            command = [sys.executable, "-m", "slipstream.cli", "proxy", "--config", str(config)]
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    async def ready(self, session: aiohttp.ClientSession) -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError, aiohttp.ClientError):
                self.url = json.loads((self.folder / "data" / "proxy.json").read_text())["url"]
                async with session.get(self.url + "/readyz") as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.1)
        raise SystemExit((self.folder / "proxy.log").read_text()[-4000:])

    async def every(self, seconds: float, what: Any) -> None:
        while not self.stop.is_set():
            await asyncio.sleep(seconds)
            if not self.stop.is_set():
                await what()

    async def swap(self, session: aiohttp.ClientSession) -> None:
        name = f"m@{self.swaps + 1}"
        write_adapter(self.folder / "data" / "adapters" / name, self.swaps % 250)
        async with session.post(f"{self.url}{API}/adapters", json={"path": name, "step": self.swaps + 1}) as reply:
            if reply.status >= 300:
                raise SystemExit(f"adapter {name}: {reply.status} {await reply.text()}")
        self.swaps += 1

    async def metric(self, session: aiohttp.ClientSession, name: str) -> float:
        async with session.get(self.url + "/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.partition("{")[0].split(" ")[0] == name)

    async def sample(self, session: aiohttp.ClientSession, pids: dict[str, int]) -> None:
        now = time.monotonic()
        self.samples.rss.append((now, rss(pids["data"])))
        self.samples.anon.append((now, rss(pids["data"], "RssAnon")))
        self.samples.control.append((now, rss(pids["control"])))
        self.samples.parent.append((now, rss(pids["parent"])))
        self.samples.lag.append(await self.metric(session, "slipstream_event_loop_lag_seconds"))

    async def left(self, session: aiohttp.ClientSession) -> float:
        """Calls and connections that the proxy still has, once it has had the time to see that all clients but this one are gone."""
        until = time.monotonic() + 15
        while True:
            running = await self.metric(session, "slipstream_in_flight")
            open_ = await self.metric(session, "slipstream_connections") - 1.0
            if not (running or open_ > 0) or time.monotonic() > until:
                return running + max(0.0, open_)
            await asyncio.sleep(1.0)

    async def missing(self, session: aiohttp.ClientSession) -> int:
        """Calls that are not in the store, once it has taken in all that it will."""
        until = time.monotonic() + 120
        while True:
            stored: set[str] = set()
            query = "select id from calls where id > '{}' order by id limit 50000"
            last = ""
            while True:
                body = {"query": query.format(last), "limit": 50_000}
                async with session.post(f"{self.url}{API}/sql", json=body) as reply:
                    rows = (await reply.json())["rows"]
                stored.update(row[0] for row in rows)
                if len(rows) < 50_000:
                    break
                last = rows[-1][0]
            left = len(self.told.begun - stored)
            if not left or time.monotonic() > until:
                return left
            await asyncio.sleep(1.0)

    async def run(self) -> dict[str, Any]:
        options = self.options
        if options.episodes:
            await asyncio.to_thread(self.fill)
        process = self.start()
        try:
            async with aiohttp.ClientSession() as session:
                await self.ready(session)
                pids = children(process.pid)
                agents = [Agent(n, self.url, self.told, self.stop, options.aborts) for n in range(options.streams)]
                port = int(self.url.rpartition(":")[2])
                slow = [Slow(n, port, self.told, self.stop) for n in range(options.slow)]
                tasks = [asyncio.create_task(client.run()) for client in (*agents, *slow)]
                numbers = iter(range(10**9))
                others = [
                    asyncio.create_task(self.every(1.0, lambda: self.sample(session, {**pids, "parent": process.pid}))),
                    asyncio.create_task(self.every(options.swap_every, lambda: self.swap(session))),
                    asyncio.create_task(
                        self.every(options.restart_every, lambda: self.engines.restart(next(numbers) % 2))
                    ),
                ]
                await asyncio.sleep(options.seconds)
                self.stop.set()
                await asyncio.gather(*tasks)
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)
            async with aiohttp.ClientSession() as session:  # with one connection of its own
                running = await self.left(session)
                return self.report(running, await self.missing(session), same=pids == children(process.pid))
        finally:
            end(process)
            self.engines.close()

    def report(self, running: float, lost: int, *, same: bool) -> dict[str, Any]:
        lag = sorted(self.samples.lag)
        return {
            "rss_growth_last_half": last_half(self.samples.rss),
            "worker_anon_growth_last_half": last_half(self.samples.anon),
            "worker_anon_mib_over_time": tenths(self.samples.anon),
            "control_rss_growth_last_half": last_half(self.samples.control),
            "parent_rss_growth_last_half": last_half(self.samples.parent),
            "worker_rss_mib_most": round(max(size for _, size in self.samples.rss) / 2**20, 1),
            "rss_growth": growth(self.samples.rss),
            "lost": lost,
            "stuck": self.told.outcomes["stuck"] + int(running),
            "lag_p99_ms": round(lag[int(len(lag) * 0.99)] * 1000, 2) if lag else None,
            "control_rss_growth": growth(self.samples.control),
            "worker_rss_mib": round(self.samples.rss[-1][1] / 2**20, 1),
            "control_rss_mib": round(self.samples.control[-1][1] / 2**20, 1),
            "control_rss_mib_over_time": tenths(self.samples.control),
            "parent_rss_mib_over_time": tenths(self.samples.parent),
            "worker_rss_mib_over_time": tenths(self.samples.rss),
            "episodes_before": self.options.episodes,
            "processes_stayed": same,
            "swaps": self.swaps,
            "engine_restarts": self.engines.restarts,
            "seconds": self.options.seconds,
            **{name: self.told.outcomes[name] for name in OUTCOMES},
        }


def growth(samples: list[tuple[float, int]]) -> float:
    """Median of the last fifth over the median of the second, less 1: the first fifth is warming up."""
    fifth = max(1, len(samples) // 5)
    values = [size for _, size in samples]
    return round(statistics.median(values[-fifth:]) / statistics.median(values[fifth : 2 * fifth] or values) - 1.0, 4)


def tenths(samples: list[tuple[float, int]]) -> list[float]:
    """Median MiB of each tenth of the run."""
    size = max(1, len(samples) // 10)
    values = [value / 2**20 for _, value in samples]
    return [round(statistics.median(values[at : at + size]), 1) for at in range(0, len(values) - size + 1, size)]


def last_half(samples: list[tuple[float, int]]) -> float:
    """The last tenth over the tenth behind the run's middle, less 1."""
    found = tenths(samples)
    return round(found[-1] / found[len(found) // 2] - 1.0, 4)


def write_adapter(folder: Path, fill: int) -> None:
    """What the control plane takes for an adapter: one float32 tensor of 8 × 4."""
    temp = folder.with_name(f".tmp-{folder.name}")
    temp.mkdir(parents=True)
    (temp / "adapter_config.json").write_text(json.dumps({"r": 8, "peft_type": "LORA", "bias": "none"}))
    data = bytes([fill, 0, 0, 0]) * 32
    entry = {"a.lora_A.weight": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, len(data)]}}
    header = json.dumps(entry).encode()
    (temp / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    temp.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--gap", type=float, default=0.1, help="seconds between a stream's events")
    parser.add_argument("--aborts", type=float, default=0.05, help="share of streams that their client leaves")
    parser.add_argument("--swap-every", type=float, default=20.0)
    parser.add_argument("--restart-every", type=float, default=45.0)
    parser.add_argument("--slow", type=int, default=0, help="clients more that read one byte a second")
    parser.add_argument("--durability", default="power")
    parser.add_argument("--episodes", type=int, default=0, help="that the store holds before the run")
    parser.add_argument("--memory-limit", default=None, help="DuckDB's (store.memory_limit); default: the proxy's")
    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(make(Path(name), parser.parse_args()))
    print(json.dumps(found))


async def make(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    return await Soak(folder, options).run()


if __name__ == "__main__":
    main()
