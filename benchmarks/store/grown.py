"""A control plane over a store that has grown: what its routes, new runs, forgetting and doing nothing cost."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Self

from filling import fill, name_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.fake_engine import LoraEngine
from tests.support.plane import API, Plane, make_config, until

from slipstream.config import Config
from slipstream_proxy.data.engines.control_link import ControlLink
from slipstream_proxy.data.engines.live import LiveView
from slipstream_proxy.store import open_store
from slipstream_proxy.store.protocol import Store
from slipstream_proxy.store.values import Rules

PARTS = ("routes", "pins", "idle", "forget")
RUNS = 128
"""New runs at once."""


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Grown:
    """A control plane over a store that was filled, asked on its socket as the data plane asks it."""

    def __init__(self, folder: Path, engine: LoraEngine, episodes: int) -> None:
        """``folder``: where ``filled`` has made the store."""
        self.episodes = episodes
        self.config = settings(folder, engine)
        self.plane = Plane(self.config, engine)
        self.link = ControlLink(self.config.socket, LiveView(self.config))
        self.names = count()
        self.unanswered = 0
        """New runs that the control plane kept waiting for so long that a worker decides alone."""

    async def __aenter__(self) -> Self:
        await self.plane.start()
        await self.plane.control.serve()
        self._following = asyncio.create_task(self.link.follow())
        await until(lambda: self.link.live.connected)
        await until(lambda: self.link.pin("-", "first", "tiny", None, "train"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        await self.link.close()
        await self.plane.stop()

    async def route(self, method: str, path: str, body: object = None) -> None:
        answer = await self.plane.client.request(method, path, json=body, headers=self.plane.as_())
        await answer.read()
        assert answer.status < 300, (path, answer.status)

    async def timed(self, method: str, path: str, body: object = None, times: int = 9) -> float:
        """Median milliseconds of a route."""
        found = []
        for n in range(times + 1):
            start = time.perf_counter()
            await self.route(method, path, body)
            found.append(1000 * (time.perf_counter() - start))
        return round(statistics.median(found[1:]), 2)

    async def routes(self) -> dict[str, float]:
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
            pinned = await self.link.pin("-", f"new{next(self.names)}", "tiny", None, "train")
            self.unanswered += pinned is None
            return 1000 * (time.perf_counter() - start)

        return list(await asyncio.gather(*(one() for _ in range(runs))))

    async def pins(self) -> float:
        """The 99th percentile of the first calls of 128 new runs at once: median of nine times."""
        await self.first_calls(RUNS)
        found = [quantile(await self.first_calls(RUNS), 0.99) for _ in range(9)]
        return round(statistics.median(found), 1)

    async def forgetting(self) -> dict[str, float]:
        """First calls of 16 new runs at once, before an episode is forgotten and until no file holds it."""
        before = [ms for _ in range(40) for ms in await self.first_calls(16)]
        await self.route("DELETE", f"{API}/episodes/{name_of(3)}")
        start, meanwhile = time.perf_counter(), list[float]()
        while self.plane.deps.forgetter.progress().episodes:
            meanwhile += await self.first_calls(16)
            await asyncio.sleep(0.05)
        stall = statistics.median(meanwhile) / statistics.median(before)
        seconds = time.perf_counter() - start
        return {
            "stall": round(stall, 2),
            "p99_ms": round(quantile(meanwhile, 0.99), 1),
            "worst_ms": round(max(meanwhile), 1),
            "seconds": round(seconds, 1),
        }

    async def idle(self, seconds: float = 10.0) -> float:
        """Share of a core that the control plane takes while nobody asks it anything."""
        await asyncio.sleep(2.0)
        before = time.process_time()
        await asyncio.sleep(seconds)
        return round((time.process_time() - before) / seconds, 4)


def settings(folder: Path, engine: LoraEngine) -> Config:
    return make_config(folder, engine, store={"memory_limit": "4GB"}, engine={"health_interval": 5.0})


def filled(folder: Path, episodes: int) -> Store:
    """A store of so many episodes, open, at the place where a control plane looks for it."""
    data = folder / "data"
    data.mkdir(parents=True)
    store = open_store(f"duckdb:///{data}/slipstream.duckdb", Rules(), memory_limit="4GB")
    fill(store, episodes)
    return store


async def measure(folder: Path, episodes: int, parts: Collection[str]) -> dict[str, object]:
    """What ``PARTS`` cost, in milliseconds."""
    engine = await LoraEngine().start()
    found: dict[str, object] = {}
    try:
        async with Grown(folder, engine, episodes) as grown:
            if "routes" in parts:
                found["routes"] = await grown.routes()
            if "pins" in parts:
                found["pin_p99_ms"] = await grown.pins()
            if "idle" in parts:
                found["idle_cpu"] = await grown.idle()
            if "forget" in parts:
                found["forget"] = await grown.forgetting()
            found["pins_unanswered"] = grown.unanswered
    finally:
        await engine.stop()
    return found
