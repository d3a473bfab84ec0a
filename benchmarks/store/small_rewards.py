"""A million small rewards: what does each cost, and what do the questions cost afterwards?

    python benchmarks/store/small_rewards.py [--rewards 1000000] [--episodes 1000] [--clients 256] [--store postgresql://…] [--result FILE]
    python benchmarks/store/small_rewards.py --direct [--rewards 1000000] [--episodes 1000] [--store postgresql://…]

``--direct``: the same rewards go into a store in this process, 4096 in a transaction, as the control plane takes them from a full spool. Otherwise a whole proxy at its defaults behind a stand-in engine. Each episode makes one call; then clients post rewards of 0.001 with ``"done": false`` to
one episode after the other, each over a connection of its own. ``--result`` is written anew with each line that is printed. At the end
every reward is counted in the store by its value, which no two of them share.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "proxy"))
from soak import API, Engines, children, end, rss  # noqa: E402

STEP = 1e-9
"""Between the values of two rewards, so that each can be told from the others."""
EVERY = 60.0
"""Seconds between lines."""
BATCH = 4096
"""Rewards of one transaction."""


def cpu(pid: int) -> float:
    """Seconds of CPU of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def size_of(folder: Path) -> float:
    """MB of the files below."""
    return round(sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6, 1)


class Load:
    def __init__(self, port: int, options: argparse.Namespace) -> None:
        self.port, self.options = port, options
        self.next = 0
        self.stored = 0
        self.again = 0
        self.refused: list[str] = []

    async def client(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while self.next < self.options.rewards:
            number, self.next = self.next, self.next + 1
            body = json.dumps({"value": 0.001 + number * STEP, "done": False})
            path = f"{API}/episodes/small-{number % self.options.episodes}/rewards"
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            while True:
                writer.write((head + body).encode())
                answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = answer.partition("content-length: ")[2].partition("\r\n")[0]
                said = await (reader.readexactly(int(length)) if length else reader.readuntil(b"\r\n0\r\n\r\n"))
                if " 200 " in answer.partition("\r\n")[0]:
                    break
                self.again += 1
                self.refused = [*self.refused[-4:], said.decode()[:200]]
                await asyncio.sleep(1.0)
            self.stored += 1
        writer.close()


class Run:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.lines: list[dict[str, Any]] = []

    def say(self, **line: Any) -> None:
        self.lines.append(line)
        print(json.dumps(line), flush=True)
        if self.options.result:
            self.options.result.write_text(json.dumps(self.lines, indent=1) + "\n")

    async def run(self) -> None:
        engines = Engines(1, 4, 0.0)
        config = self.folder / "slipstream.toml"
        store = f'[store]\nurl = "{self.options.store}"\n' if self.options.store else ""
        config.write_text(
            f'data_dir = "{self.folder}/data"\n[engine]\nname = "m"\nurls = ["http://127.0.0.1:{engines.ports[0]}"]\n'
            f'[proxy]\nport = 0\n[models."gpt-*"]\ntrained = "m"\n{store}'
        )
        with (self.folder / "proxy.log").open("wb") as log:
            command = [sys.executable, "-m", "slipstream.cli", "proxy", "--config", str(config)]
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: ASYNC220
        try:
            async with aiohttp.ClientSession() as session:
                await self.measure(session, process)
        finally:
            end(process)
            engines.close()

    async def measure(self, session: aiohttp.ClientSession, process: subprocess.Popen[bytes]) -> None:
        url = await self.ready(session)
        pids = children(process.pid)
        for number in range(self.options.episodes):
            body = {"model": "gpt-4o", "messages": [{"role": "user", "content": f"task {number}"}], "stream": True}
            headers = {"x-slipstream-episode": f"small-{number}"}
            async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
                await reply.read()
                assert reply.status == 200, reply.status
        load = Load(int(url.rpartition(":")[2]), self.options)
        tasks = [asyncio.create_task(load.client()) for _ in range(self.options.clients)]
        began, last, spent, at = time.monotonic(), 0, cpu(pids["control"]), time.monotonic()
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=EVERY)
            now, used = time.monotonic(), cpu(pids["control"])
            done = max(1, load.stored - last)
            self.say(
                seconds=round(now - began),
                rewards=load.stored,
                rewards_a_second=round(done / (now - at)),
                control_cpu_ms_a_reward=round(1000 * (used - spent) / done, 3),
                control_rss_mib=rss(pids["control"]) >> 20,
                worker_rss_mib=rss(pids["data"]) >> 20,
                sent_again=load.again,
                **({"refused": load.refused} if load.refused else {}),
            )
            last, spent, at = load.stored, used, now
        for task in tasks:
            task.result()
        await self.questions(session, url, pids)

    async def questions(self, session: aiohttp.ClientSession, url: str, pids: dict[str, int]) -> None:
        body = {"query": "select count(*), count(distinct value), count(distinct episode) from rewards"}
        async with session.post(f"{url}{API}/sql", json=body) as reply:
            counted = (await reply.json())["rows"][0]
        took = {}
        for name, path in (
            ("status_s", "/status"),
            ("episode_s", "/episodes/small-1"),
            ("episodes_s", "/episodes?limit=50"),
        ):
            started = time.monotonic()
            async with session.get(f"{url}{API}{path}") as reply:
                size = len(await reply.read())
                assert reply.status == 200, (path, reply.status)
            took |= {name: round(time.monotonic() - started, 3), name.replace("_s", "_bytes"): size}
        self.say(
            stored=counted[0],
            distinct=counted[1],
            episodes=counted[2],
            data_mb=size_of(self.folder / "data"),
            control_rss_mib=rss(pids["control"]) >> 20,
            **took,
        )

    async def ready(self, session: aiohttp.ClientSession) -> str:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError, aiohttp.ClientError):
                url = str(json.loads((self.folder / "data" / "proxy.json").read_text())["url"])
                async with session.get(url + "/readyz") as reply:
                    if reply.status == 200:
                        return url
            await asyncio.sleep(0.1)
        raise SystemExit((self.folder / "proxy.log").read_text()[-4000:])


def direct(folder: Path, options: argparse.Namespace) -> None:
    """Into the store alone."""
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.support.records import call, reward

    from slipstream_proxy.store import open_store
    from slipstream_proxy.store.values import Position, Rules

    store = open_store(options.store or f"duckdb:///{folder}/store.duckdb", Rules())
    positions = ({"data0": Position(0, n)} for n in range(10**9))
    now = time.time()
    store.ingest([call(f"small-{n}", at=now, task="t") for n in range(options.episodes)], next(positions))
    spent, last, done = time.process_time(), time.monotonic(), 0
    for first in range(0, options.rewards, BATCH):
        numbers = range(first, min(first + BATCH, options.rewards))
        items = [
            reward(f"small-{n % options.episodes}", 0.001 + n * STEP, at=now + n * 1e-4, id=f"r{n:024d}", done=False)
            for n in numbers
        ]
        store.ingest(items, next(positions))
        done += len(items)
        if time.monotonic() - last > EVERY or first + BATCH >= options.rewards:
            used, at = time.process_time(), time.monotonic()
            line = {"rewards": first + len(items), "rewards_a_second": round(done / (at - last))}
            line |= {"cpu_ms_a_reward": round(1000 * (used - spent) / done, 3), "rss_mib": rss(os.getpid()) >> 20}
            print(json.dumps(line), flush=True)
            spent, last, done = used, at, 0
    started = time.monotonic()
    with store.db.read() as tx:  # type: ignore[attr-defined]
        counted = tx.all("SELECT count(*), count(DISTINCT value), count(DISTINCT eid) FROM t_rewards")[0]
    took = round(time.monotonic() - started, 3)
    print(json.dumps({"stored": counted[0], "distinct": counted[1], "episodes": counted[2], "counted_in_s": took}))
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewards", type=int, default=1_000_000)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--store", default=None)
    parser.add_argument("--direct", action="store_true", help="into the store alone")
    parser.add_argument("--result", type=Path, default=None)
    with tempfile.TemporaryDirectory() as name:
        options = parser.parse_args()
        if options.direct:
            direct(Path(name), options)
        else:
            asyncio.run(Run(Path(name), options).run())


if __name__ == "__main__":
    main()
