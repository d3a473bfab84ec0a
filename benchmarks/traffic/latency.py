"""What an agent feels of siblings: the time of its calls with them and without, by turns.

Two proxies, each before a stand-in for an engine whose steps take longer the more it has to do, and which stops where a client goes away, as vLLM does.
They are never busy together: a turn begins when the other proxy's siblings are all sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from aiohttp import web
from tests.support import free_port, process, wait_for
from tests.support.fake_engine import FakeEngine
from tests.support.served import Served

STEP, EACH, TOKENS = 0.004, 0.03, 20
"""Seconds of an engine's step with one request; how much longer it takes with one more; steps of a reply."""
TURN = 15.0
"""Seconds of agents' calls at one proxy, then at the other."""
AGENTS, CALLS, REST = 4, 6, 6.0
"""Agents; calls of a run; most seconds between two runs."""


class SteppingEngine(FakeEngine):
    """Samples a token of each request a step."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.siblings = 0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.running += 1
        try:
            for _ in range(TOKENS):
                await asyncio.sleep(STEP * (1 + EACH * (self.running - 1)))
        finally:
            self.running -= 1
        self.siblings += "kv_transfer_params" in body
        return await super().chat(request)

    async def metrics(self, _: web.Request) -> web.Response:
        lines = f'vllm:num_requests_running{{engine="0"}} {self.running}\nvllm:num_requests_waiting{{engine="0"}} 0\n'
        return web.Response(text=lines)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        return app


@contextlib.contextmanager
def proxy(folder: Path, *, siblings: bool) -> Iterator[tuple[str, SteppingEngine]]:
    """→ (its address, its engine)."""
    folder.mkdir(parents=True)
    port, engine = free_port(), SteppingEngine()
    with Served(engine.app(), cancels=True) as url:
        command = [sys.executable, "-m", "slipstream.cli", "proxy", "--engine", url, "--port", str(port)]
        sets = ["engine.name=tiny", f"data_dir={folder}/data", "engine.kind='vllm'"]
        sets += ["judge.function='benchmarks.traffic.talks:score_steps'"]
        route = "{ explore = 'siblings', explore_share = 1.0, explore_samples = 4 }"
        sets += [f"models={{ tiny = {route} }}"] if siblings else []
        with process([*command, *(x for s in sets for x in ("--set", s))], folder / "proxy.log"):
            ours = f"http://127.0.0.1:{port}"
            wait_for(functools.partial(httpx.get, f"{ours}/readyz"), 60)
            yield ours, engine


async def calls_of(url: str, seconds: float, seed: int) -> list[float]:
    """Seconds of each call."""
    found: list[float] = []
    until = time.monotonic() + seconds

    async def agent(number: int) -> None:
        coin = random.Random(f"{seed} {number}")
        async with httpx.AsyncClient(timeout=60) as http:
            while time.monotonic() < until:
                for turn in range(CALLS):
                    said = [{"role": "user", "content": f"{seed} {number} {turn} {len(found)}"}]
                    began = time.perf_counter()
                    asked = {"model": "tiny", "messages": said, "temperature": 0}
                    (await http.post(f"{url}/v1/chat/completions", json=asked)).raise_for_status()
                    found.append(time.perf_counter() - began)
                await asyncio.sleep(coin.uniform(0.0, REST))

    await asyncio.gather(*(agent(n) for n in range(AGENTS)))
    return found


async def drained(url: str, longest: float = 60.0) -> None:
    """Until no step waits for siblings."""
    until, looks = time.monotonic() + longest, 0
    async with httpx.AsyncClient(timeout=30) as http:
        while looks < 3 and time.monotonic() < until:
            status = (await http.get(f"{url}/slipstream/v1/status")).json()
            waits = any("until no agent's call" in line for line in status.get("waiting", ["until no agent's call"]))
            looks = 0 if waits else looks + 1
            await asyncio.sleep(0.3)


def measure(folder: Path, seed: int, left: Callable[[], float]) -> dict[str, Any]:
    """Pairs of turns until no time is left."""
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    with proxy(folder / "off", siblings=False) as off, proxy(folder / "on", siblings=True) as on:
        for turn in itertools.takewhile(lambda n: n < 1 or left() > 2.5 * TURN, itertools.count()):
            for with_siblings in (turn % 2 == 1, turn % 2 == 0):
                url = (on if with_siblings else off)[0]
                found[with_siblings].append(asyncio.run(calls_of(url, TURN, 1000 * seed + turn)))
                asyncio.run(drained(url))
        figures: dict[str, Any] = {"siblings": on[1].siblings, "turns": len(found[True])}
    for name, turns in (("off", found[False]), ("on", found[True])):
        figures[f"calls_{name}"] = sum(map(len, turns))
    for p in (50, 99):
        pairs = [np.percentile(b, p) / np.percentile(a, p) for a, b in zip(found[False], found[True], strict=True)]
        a, b = (float(np.percentile(np.concatenate(found[x]), p)) for x in (False, True))
        figures |= {f"p{p}_ms_off": round(1e3 * a, 2), f"p{p}_ms_on": round(1e3 * b, 2)}
        figures |= {f"p{p}_ratio": round(b / a, 4), f"p{p}_ratio_of_pairs": round(float(statistics.median(pairs)), 4)}
    return figures
