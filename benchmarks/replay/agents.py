"""What do agents feel of a replay? Their calls' times before the running proxy: alone and beside a replay, in turns.

Agents come in bursts, with rests between them: a replay uses those. A round is a window of agents alone, and then one
in which ``gate.mode = "replay"`` replays a new version, which is taken back afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import shutil
import statistics
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from worlds import WORLDS, Ask, Message, World

from slipstream.client import AsyncClient
from slipstream.contract import Adapter, AdapterIn
from slipstream.errors import SlipstreamError
from slipstream.operate.demo.task import demo_config, load_task
from slipstream.operate.run.stack import start_stack
from slipstream.shared.processes.supervisor import Supervisor

AGENTS = 8
VERDICT = 900.0
"""Seconds within which a replay has to end."""


@dataclass
class TimedAgents:
    """A burst of runs, a rest, and so on. Seconds of each call, by the window that it fell into as a whole."""

    world: World
    url: str
    http: httpx.AsyncClient
    rest: float
    window: tuple[int, bool] | None = None
    """(Round, whether a replay runs)."""
    seconds: dict[tuple[int, bool], list[float]] = field(default_factory=dict)

    def ask(self, headers: dict[str, str]) -> Ask:
        async def call(messages: list[Message], tools: list[Message]) -> Message:
            body = {"model": self.world.name, "messages": messages, "tools": tools, "temperature": 1.0}
            body["max_tokens"] = self.world.max_tokens
            window, began = self.window, time.perf_counter()
            answer = await self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)
            took = time.perf_counter() - began
            if window is not None and window == self.window:
                self.seconds.setdefault(window, []).append(took)
            message: Message = answer.raise_for_status().json()["choices"][0]["message"]
            return {k: v for k, v in message.items() if k in ("role", "content", "tool_calls") and v is not None}

        return call

    async def run(self, item: Any, split: str) -> None:
        name = uuid.uuid4().hex
        headers = {"x-slipstream-episode": name, "x-slipstream-task": item.id, "x-slipstream-split": split}
        headers["x-slipstream-tag-customer"] = str(self.world.tag(item))
        reward = await self.world.play(self.ask(headers), item)
        path = f"{self.url}/slipstream/v1/episodes/{name}/rewards"
        (await self.http.post(path, json={"value": reward})).raise_for_status()

    async def bursts(self, items: Any) -> None:
        while True:
            await asyncio.gather(*(self.run(item, "train") for item in itertools.islice(items, AGENTS)))
            await asyncio.sleep(self.rest)


async def verdict_of(client: AsyncClient, name: str) -> Adapter:
    until = time.monotonic() + VERDICT
    while time.monotonic() < until:
        try:
            found = next((a for a in (await client.adapters()).adapters if a.name == name), None)
        except SlipstreamError:  # a busy machine
            found = None
        if found is not None and found.replay is not None and found.replay.outcome != "running":
            return found
        await asyncio.sleep(0.2)
    raise SystemExit(f"{name}: no verdict of its replay within {VERDICT:g} s")


async def measured(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """``folder``: the inbox' adapters, as ``--make`` left them."""
    world, data = WORLDS["inbox"], folder / "agents"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    replay = {"cases": args.cases, "samples": 8, "sets": ["auto-sample"]}
    config = demo_config(load_task("inbox"), 0, data, args.set)
    gate = config.gate.model_copy(update={"mode": "replay", "replay": config.gate.replay.model_copy(update=replay)})
    trainer = config.trainer.model_copy(update={"enabled": False})
    config = config.model_copy(update={"gate": gate, "trainer": trainer})
    rounds = []
    with (data / "log").open("w", buffering=1) as log:
        supervisor = Supervisor(lambda who, line: print(f"{who:8} | {line}", file=log))
        try:
            stack = await start_stack(config, supervisor, functools.partial(print, flush=True))
            limits = httpx.Limits(max_connections=None)
            async with (
                httpx.AsyncClient(timeout=120.0, limits=limits, trust_env=False) as http,
                AsyncClient(stack.url) as client,
            ):
                agents = TimedAgents(world, stack.url, http, args.rest)
                items = world.items("train", 99)
                for _ in range(-(-args.cases // 40)):
                    await asyncio.gather(*(agents.run(item, "train") for item in itertools.islice(items, 40)))
                working = asyncio.create_task(agents.bursts(items))
                for n in range(1, args.rounds + 1):
                    name = f"inbox@{n}"
                    shutil.copytree(folder / "versions" / "better", config.adapters_dir / name)
                    agents.window = (n, False)
                    await asyncio.sleep(args.quiet)
                    agents.window = (n, True)
                    await client.add_adapter(AdapterIn(path=name))
                    found = (await verdict_of(client, name)).replay
                    agents.window = None
                    await client.rollback(name, "measured")
                    assert found is not None
                    took = (found.ended or 0.0) - found.began
                    cases = sum(s.cases for s in found.sets)
                    rounds.append({"outcome": found.outcome, "cases": cases, "tokens": found.tokens, "seconds": took})
                    print(rounds[-1], flush=True)
                working.cancel()
        finally:
            await supervisor.stop()
    return {"agents": AGENTS, "rest": args.rest, "rounds": rounds, **summed(agents.seconds)}


def summed(seconds: dict[tuple[int, bool], list[float]]) -> dict[str, Any]:
    """Quantiles of both kinds of windows, and how they differ within each round."""
    both: dict[bool, list[float]] = {side: [] for side in (False, True)}
    for (_, side), values in seconds.items():
        both[side] += values

    def q(values: list[float], share: float) -> float:
        return round(float(np.quantile(values, share)), 5)

    pairs = [n for n, side in seconds if side and seconds.get((n, False))]
    ratios = [q(seconds[n, True], 0.99) / q(seconds[n, False], 0.99) for n in pairs]
    return {
        "calls": [len(both[False]), len(both[True])],
        "p50": [q(both[False], 0.5), q(both[True], 0.5)],
        "p99": [q(both[False], 0.99), q(both[True], 0.99)],
        "p99_ratio": round(q(both[True], 0.99) / q(both[False], 0.99), 4),
        "p99_ratio_median_of_rounds": round(statistics.median(ratios), 4),
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    return {"agents_p99": asyncio.run(measured((args.data_dir / "inbox").resolve(), args))}
