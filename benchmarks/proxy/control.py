"""Agents that reward their runs, and a trainer, on one proxy: how long do they wait for the control plane, and what does a run cost it?

    python benchmarks/proxy/control.py [--agents 128] [--seconds 20]

A whole proxy with DuckDB in front of an engine that answers at once. Each agent makes runs of seven calls, thinks in between, and posts a reward;
eight runs share a task, and a quarter of the runs succeed. A stand-in for the trainer leases batches, asks for the adapters, posts an event and an ack,
as the trainer does. The last line is one JSON object: runs a second, milliseconds of each request, and the control plane's CPU time for one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import aiohttp
from soak import API, children
from targets import cpu_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.fake_engine import FakeEngine
from tests.support.running import Running, run_proxy

CALLS, GROUP, THINK = 7, 8, 0.05
STEP_SECONDS = 0.15
"""What a step takes the trainer."""
CLIENTS = 4
"""Processes that the agents run in."""
MODEL = "inbox"
Waits = dict[str, list[float]]
"""Request → seconds of each."""


class Forgetful(list[Any]):
    """The engine notes nothing."""

    def append(self, _: Any) -> None:
        return


def engine(out: Queue[str]) -> None:
    async def serve() -> None:
        found = FakeEngine()
        found.models, found.seen, found.raw = {MODEL}, Forgetful(), Forgetful()
        await found.start()
        out.put(found.url)
        await asyncio.Event().wait()

    asyncio.run(serve())


class Caller:
    """Times what it asks."""

    def __init__(self, http: aiohttp.ClientSession, waits: Waits) -> None:
        self.http, self.waits = http, waits

    async def __call__(self, name: str, method: str, path: str, body: object = None, headers: Any = None) -> Any:
        began = time.monotonic()
        async with self.http.request(method, path, json=body, headers=headers) as reply:
            await reply.read()
            reply.raise_for_status()
            self.waits[name].append(time.monotonic() - began)
            return reply


async def agent(ask: Caller, number: int, end: float) -> None:
    """Runs, one after the other."""
    await asyncio.sleep(0.002 * number)
    n = 0
    while time.monotonic() < end:
        run = uuid.uuid4().hex
        tags = {"x-slipstream-episode": run, "x-slipstream-task": f"t{number // GROUP}-{n}"}
        messages = [{"role": "system", "content": "policy " * 100}, {"role": "user", "content": "hi"}]
        for _ in range(CALLS):
            body = {"model": MODEL, "messages": messages, "max_tokens": 48}
            await ask("call", "POST", "/v1/chat/completions", body, tags)
            messages += [{"role": "assistant", "content": "abc " * 10}, {"role": "user", "content": "more " * 20}]
            await asyncio.sleep(THINK)
        await ask("reward", "POST", f"{API}/episodes/{run}/rewards", {"value": float((number + n) % 4 == 0)})
        n += 1


def agents(url: str, numbers: range, seconds: float, out: Queue[Waits]) -> None:
    waits: Waits = defaultdict(list)

    async def work() -> None:
        end = time.monotonic() + seconds
        async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
            await asyncio.gather(*(agent(Caller(http, waits), n, end) for n in numbers))

    asyncio.run(work())
    out.put(dict(waits))


async def trainer(url: str, seconds: float) -> Waits:
    """A trainer's requests of each step, one after the other."""
    waits: Waits = defaultdict(list)
    end, step = time.monotonic() + seconds, 0
    wanted = {"worker": "t", "model": MODEL, "min_groups": 16, "max_groups": 16, "max_wait": 30, "equal": "rewards"}
    async with aiohttp.ClientSession(url) as http:
        ask = Caller(http, waits)
        while time.monotonic() < end:
            began = time.monotonic()
            leased = await ask("lease", "POST", f"{API}/batches/lease", wanted | {"form": "deltas"})
            if leased.status == 204:
                waits["lease"].pop()
                await asyncio.sleep(0.25)
                continue
            step += 1
            await asyncio.sleep(STEP_SECONDS)
            await ask("adapters", "GET", f"{API}/adapters")
            event = {"kind": "step", "at": time.time(), "data": {"step": step}}
            await ask("event", "POST", f"{API}/training/events", event)
            ack = {"lease": leased.headers["x-slipstream-lease"], "outcome": "trained", "step": step}
            await ask("ack", "POST", f"{API}/batches/{leased.headers['x-slipstream-batch']}/ack", ack)
            waits["step"].append(time.monotonic() - began)
    return waits


def measure(proxy: Running, count: int, seconds: float) -> dict[str, Any]:
    control = children(proxy.process.pid)["control"]
    out: Queue[Waits] = multiprocessing.Queue()
    shares = [range(count)[n::CLIENTS] for n in range(CLIENTS)]
    before, began = cpu_seconds(control), time.monotonic()
    clients = [multiprocessing.Process(target=agents, args=(proxy.url, share, seconds, out)) for share in shares]
    for client in clients:
        client.start()
    waits = asyncio.run(trainer(proxy.url, seconds))
    for found in [out.get(timeout=seconds + 60) for _ in clients]:
        for name, times in found.items():
            waits[name] += times
    took, runs = time.monotonic() - began, len(waits["reward"])
    found = {"agents": count, "runs_per_s": round(runs / took, 1), "steps": len(waits["step"])}
    for name, times in waits.items():
        found |= {f"{name}_p50_ms": round(1000 * statistics.median(times), 1)} if times else {}
        found |= {f"{name}_p90_ms": round(1000 * statistics.quantiles(times, n=10)[-1], 1)} if len(times) > 1 else {}
    return found | {"control_cpu_ms_per_run": round(1000 * (cpu_seconds(control) - before) / runs, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    ready: Queue[str] = multiprocessing.Queue()
    process = multiprocessing.Process(target=engine, args=(ready,), daemon=True)
    process.start()
    with run_proxy(Path(tempfile.mkdtemp()), ready.get()) as running:
        print(json.dumps(measure(running, args.agents, args.seconds)))


if __name__ == "__main__":
    main()
