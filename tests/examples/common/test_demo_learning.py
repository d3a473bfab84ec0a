"""What the demo watches while the agent learns."""

from __future__ import annotations

import asyncio
import sys

import httpx
import pytest
from common.demo.learning import (
    DemoEnd,
    Learned,
    engine_tokens,
    goal,
    newest_reward,
    recorded,
    resume,
    settle,
)
from tests.support import free_port
from tests.support.server import Server

from slipstream.client import AsyncClient
from slipstream.config import load_config
from slipstream.operate.run.stack import Stack
from slipstream.shared.processes.supervisor import Child, Supervisor


async def test_tokens_by_the_engines_own_count(server: Server) -> None:
    server.on(
        "GET",
        "/metrics",
        'vllm:x 1\nvllm:generation_tokens_total{engine="0"} 1.5e2\nvllm:generation_tokens_total{engine="1"} 50\n',
    )
    async with httpx.AsyncClient(trust_env=False) as http:
        assert await engine_tokens(server.url, http) == 200
        assert await engine_tokens(f"http://127.0.0.1:{free_port()}", http) is None


async def test_calls_in_the_store_once_it_has_caught_up(server: Server) -> None:
    server.on("POST", "/sql", {"columns": ["n"], "rows": [[12]]})
    assert await recorded(server.url, 12) == 12


@pytest.mark.parametrize(("row", "seen"), [([0.25, 256], (0.25, 256)), ([None, 0], (0.0, 0))])
async def test_the_reward_of_the_newest_episodes(server: Server, row: list, seen: tuple[float, int]) -> None:
    server.on("POST", "/sql", {"columns": ["a", "n"], "rows": [row]})
    async with AsyncClient(server.url) as client:
        assert await newest_reward(client) == seen


@pytest.mark.parametrize(("expert", "reached"), [(1.0, 0.99), (0.0, 0.0), (-0.5, -0.505)])
def test_the_goal_is_a_hundredth_below_the_expert(expert: float, reached: float) -> None:
    assert goal(expert) == pytest.approx(reached)


@pytest.mark.parametrize(
    ("steps", "taken", "seconds", "reward", "why"),
    [
        (None, 9, 10.0, 0.98, ""),
        (None, 9, 10.0, 0.99, "the mean reward of the last 256 episodes reached 0.990"),
        (None, 2, 10.0, 0.99, ""),
        (None, 9, 60.0, 0.5, "the time was over"),
        (20, 19, 10.0, 1.0, ""),
        (20, 20, 10.0, 0.1, "20 steps were taken"),
        (20, 9, 60.0, 1.0, "the time was over"),
    ],
)
def test_it_ends_by_the_goal_by_the_clock_or_after_so_many_steps(
    steps: int | None, taken: int, seconds: float, reward: float, why: str
) -> None:
    end = DemoEnd(seconds=60.0, goal=0.99, steps=steps)
    assert end.reason(Learned(steps=taken, train_seconds=seconds), reward, 256) == why
    assert DemoEnd(60.0, 0.99).reason(Learned(steps=9, train_seconds=1.0), 1.0, 255) == ""


async def test_the_trainer_ends_before_the_last_measurement_and_starts_after_it(server: Server) -> None:
    server.on("GET", "/adapters", {"adapters": [], "live": {"m": "m@3"}})
    supervisor = Supervisor()
    child = supervisor.start(Child("trainer", [sys.executable, "-c", "import time; time.sleep(60)"]))
    stack = Stack(server.url, load_config(env={}), None, child, child, None, "")
    try:
        assert await supervisor.until(child, lambda: asyncio.sleep(0, child.process is not None), 10)
        assert await settle(stack) == "m@3"
        await asyncio.sleep(0)
        assert child.exit_code is not None
        resume(stack, supervisor)
        assert await supervisor.until(child, lambda: asyncio.sleep(0, child.starts == 2), 10)
        assert supervisor.children == [child], "it is ended once"
        assert child.restart, "and started again if it fails"
    finally:
        await supervisor.stop()
