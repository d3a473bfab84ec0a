"""What agents feel of a replay: the shipped turns before an engine whose steps take longer the more it has to do.

Minutes pass in a second. The engine samples a token of each request a step; an agent's run begins with a pin.
"""

from __future__ import annotations

import asyncio
import random
import time

import numpy as np
import pytest
from tests.support.adapter_world import play

from slipstream_siblings.idle import IdleTurns

STEP = 0.02
"""Seconds of a step with one request."""
TOKENS = 50


class SteppingEngine:
    """``each``: how much longer a step takes with one more request, beside the first."""

    def __init__(self, each: float) -> None:
        self.each = each
        self.left: dict[asyncio.Future[None], int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP * (1 + self.each * max(len(self.left) - 1, 0)))
            for done in list(self.left):
                self.left[done] -= 1
                if not self.left[done] and not done.done():
                    done.set_result(None)
                if done.done():
                    del self.left[done]

    async def answer(self, tokens: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left[done] = tokens
        await done  # a request that is given up leaves with the step that runs

    async def load(self) -> tuple[float, float]:
        return float(len(self.left)), 0.0


async def seconds_of_calls(each: float, *, replay: bool, pause: float) -> tuple[list[float], int]:
    """→ (seconds of each call of agents, the replay's requests that were answered). ``pause``: between a run's calls."""
    engine, coin = SteppingEngine(each), random.Random(3)
    awake = asyncio.Event()
    awake.set()
    turns = IdleTurns(engine.load, awake)
    found: list[float] = []
    answered = 0

    async def asked() -> None:
        nonlocal answered
        while True:
            try:
                async with turns.turn() as told:
                    await engine.answer(TOKENS)
                    told(TOKENS)
                answered += 1
            except TimeoutError:
                continue

    tasks = [asyncio.ensure_future(engine.run())]
    if replay:
        tasks += [asyncio.ensure_future(turns.watch()), *(asyncio.ensure_future(asked()) for _ in range(32))]
    for _ in range(25):
        await asyncio.sleep(coin.uniform(1.0, 12.0))
        turns.agents_came()
        await asyncio.sleep(0.002)
        for _ in range(4):
            began = asyncio.get_running_loop().time()
            await engine.answer(TOKENS + coin.randrange(10))
            found.append(asyncio.get_running_loop().time() - began)
            await asyncio.sleep(pause * coin.uniform(0.5, 1.5))
    for task in tasks:
        task.cancel()
    return found, answered


@pytest.mark.parametrize(
    ("each", "pause"),
    [(0.01, 0.3), (0.01, 2.5), (0.04, 2.5), (0.5, 0.3)],
    ids=["a GPU", "slow tools", "a slower GPU", "two cores"],
)
def test_agents_calls_take_at_most_a_twentieth_longer(each, pause, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: asyncio.get_running_loop().time())
    alone, _ = play(seconds_of_calls(each, replay=False, pause=pause))
    beside, answered = play(seconds_of_calls(each, replay=True, pause=pause))
    ratio = np.quantile(beside, 0.99) / np.quantile(alone, 0.99)
    print(f"p99 {ratio:.3f}, p50 {np.median(beside) / np.median(alone):.3f}, {answered} requests of the replay")
    assert ratio <= 1.05 and answered > 100
