"""A control plane over a store that has grown, in a process of its own: what its routes, new runs, forgetting and doing nothing cost.

Several can be asked by turns, so that a machine on which others work is as busy for one as for the other.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from benchmarks.harness import quantile
from benchmarks.store.filling import CALLS, MODEL, OPEN, fill, name_of
from tests.support.fake_engine import LoraEngine
from tests.support.plane import API, Plane, make_config, register, until

from slipstream.config import Config
from slipstream_proxy.data.engines.control_link import ControlLink
from slipstream_proxy.data.engines.live import LiveView
from slipstream_proxy.store import open_store
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.values import Rules

PARTS = ("routes", "pins", "rate", "idle", "forget")
RUNS = 128
"""New runs at once."""
AT_REST = 2.1
"""Seconds after which the control plane looks its figures up again, and does not tell those of a moment ago."""
RATED = 5.0
"""Seconds for which new runs come as fast as they are answered."""
IDLE = 20.0
"""Seconds that it is left alone."""


class Grown:
    """A control plane over a store that was filled, asked on its socket as the data plane asks it."""

    def __init__(self, folder: Path, engine: LoraEngine, episodes: int, url: str | None) -> None:
        """``folder``: where ``filled`` has made the store; ``url``: of PostgreSQL."""
        self.episodes = episodes
        self.config = settings(folder, engine, url)
        self.plane = Plane(self.config, engine)
        self.link = ControlLink(self.config.socket, LiveView(self.config))
        self.names, self.forgotten = count(), count(3)
        self.unanswered = 0
        """New runs that the control plane kept waiting for so long that a worker decides alone."""

    async def __aenter__(self) -> Self:
        await self.plane.start()
        await self.plane.control.serve()
        self._following = asyncio.create_task(self.link.follow())
        await until(lambda: self.link.live.connected)
        # an adapter is live and the base model is its control arm: each new run's adapter is a choice
        status, answer = await register(self.plane, 1)
        assert status < 300, answer
        await until(lambda: self.link.live.models[MODEL].arms)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        await self.link.close()
        await self.plane.stop()

    async def route(self, method: str, path: str, body: object = None) -> bytes:
        answer = await self.plane.client.request(method, path, json=body, headers=self.plane.as_())
        text = await answer.read()
        assert answer.status < 300, (path, answer.status, text)
        return text

    async def timed(self, method: str, path: str, body: object = None) -> float:
        """Milliseconds of a route."""
        start = time.perf_counter()
        await self.route(method, path, body)
        return 1000 * (time.perf_counter() - start)

    async def check(self) -> None:
        """The store is as large as is said, and what is asked for is there."""
        status: dict[str, Any] = json.loads(await self.route("GET", f"{API}/status"))
        going = self.episodes // OPEN
        assert status["episodes"] == {"done": self.episodes - going, "open": going}, status["episodes"]
        assert status["calls"] == CALLS * self.episodes, status["calls"]
        await until(lambda: self._counted(f'slipstream_episodes{{state="done"}} {float(self.episodes - going)}'))
        one = json.loads(await self.route("GET", f"{API}/episodes/{name_of(self.episodes // 2)}"))
        assert len(one["call_list"]) == CALLS
        assert len(json.loads(await self.route("GET", f"{API}/episodes"))["episodes"]) >= 20

    async def _counted(self, line: str) -> bool:
        return line in (await self.route("GET", "/internal/metrics")).decode()

    async def routes(self) -> dict[str, float]:
        """Milliseconds of each, after a rest."""
        await asyncio.sleep(AT_REST)
        one = name_of(self.episodes // 2)
        lease = {"worker": "j", "names": ["reward"]}
        return {
            "status": await self.timed("GET", f"{API}/status"),
            "page": await self.timed("GET", f"{API}/episodes"),
            "episode": await self.timed("GET", f"{API}/episodes/{one}"),
            "reward": await self.timed("POST", f"{API}/episodes/{one}/rewards", {"value": 0.5}),
            "lease": await self.timed("POST", f"{API}/groups/lease", lease),
            "metrics": await self.timed("GET", "/internal/metrics"),
        }

    async def first_calls(self, runs: int) -> list[float]:
        """Milliseconds until each of so many new runs, begun at once, has its pin."""

        async def one() -> float:
            start = time.perf_counter()
            pinned = await self.link.pin("-", f"new{next(self.names)}", MODEL, None, "train", {})
            assert pinned is None or pinned["chances"], "there was nothing to choose"
            self.unanswered += pinned is None
            return 1000 * (time.perf_counter() - start)

        return list(await asyncio.gather(*(one() for _ in range(runs))))

    async def pins(self) -> float:
        """The 99th percentile of the first calls of 128 new runs at once."""
        return quantile(await self.first_calls(RUNS), 0.99)

    async def rate(self) -> dict[str, float]:
        """New runs a second, ``RUNS`` at a time; and how many a second of this process's CPU, askers and HTTP included."""
        began, before, done = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() < began + RATED:
            await self.first_calls(RUNS)
            done += RUNS
        work, took = time.process_time() - before, time.perf_counter() - began
        return {"a_second": round(done / took), "a_cpu_second": round(done / work)}

    async def some(self) -> list[float]:
        return await self.first_calls(16)

    async def forget(self) -> int:
        """→ Episodes that a file holds still."""
        await self.route("DELETE", f"{API}/episodes/{name_of(next(self.forgotten))}")
        return await self.left()

    async def left(self) -> int:
        return self.plane.deps.forgetter.progress().episodes

    async def idle(self) -> float:
        """Share of a core that the control plane takes while nobody asks it anything."""
        await asyncio.sleep(5.0)
        before = time.process_time()
        await asyncio.sleep(IDLE)
        return round((time.process_time() - before) / IDLE, 4)

    async def refused(self) -> int:
        return self.unanswered


def settings(folder: Path, engine: LoraEngine, url: str | None = None) -> Config:
    store = {"memory_limit": "4GB", **({"url": url} if url else {})}
    return make_config(folder, engine, store=store, engine={"health_interval": 5.0}, gate={"holdout": 0.1})


def filled(folder: Path, episodes: int, url: str | None = None) -> Store:
    """A store of so many episodes, open, at the place where a control plane looks for it."""
    store = opened(folder, url)
    fill(store, episodes)
    return store


def opened(folder: Path, url: str | None = None) -> Store:
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    return open_store(url or f"duckdb:///{data}/slipstream.duckdb", Rules(), memory_limit="4GB")


async def _serve(folder: Path, episodes: int, url: str | None, pipe: Connection) -> None:
    engine = await LoraEngine().start()
    try:
        async with Grown(folder, engine, episodes, url) as grown:
            await grown.check()
            pipe.send(None)
            while what := await asyncio.to_thread(pipe.recv):
                pipe.send(await getattr(grown, what)())
    finally:
        await engine.stop()


def serve(folder: Path, episodes: int, url: str | None, pipe: Connection) -> None:
    asyncio.run(_serve(folder, episodes, url, pipe))


class GrownProcess:
    """``Grown`` in a process of its own, ready once this is made."""

    def __init__(self, folder: Path, episodes: int, url: str | None = None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(folder, episodes, url, theirs))
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def ask(self, what: str) -> Any:
        """What a method of ``Grown`` answers. Raises ``EOFError`` if the process has failed."""
        self._pipe.send(what)
        return self._pipe.recv()

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send("")
        self._process.join()
