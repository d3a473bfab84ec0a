"""Watches the agent learn: until the newest adapters are as good as the expert, or the time is over."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx

from common.demo.driver import TaskDriver
from slipstream.client import AsyncClient
from slipstream.contract import Event
from slipstream.engines import DEFAULT_ENGINE
from slipstream.errors import ApiError
from slipstream.operate.run.stack import Stack
from slipstream.shared.processes.supervisor import Supervisor
from slipstream.shared.progress import Progress

WINDOW_EPISODES = 256
"""Episodes of the newest adapters over which the reward is watched."""
REWARD_EVERY = 5.0
"""Seconds between two looks at it: each is an SQL query, which takes a process of its own."""
SHORT_OF_EXPERT = 0.01
"""As good as the expert is: less than this share of its reward below it."""
FIRST_STEP_LIMIT = 300.0
"""Seconds of work after which the first step should have been taken; later the demo ends and says what it waits for."""


@dataclass(slots=True, frozen=True)
class DemoEnd:
    """When the agent has worked enough."""

    seconds: float
    """After the first step."""
    goal: float
    """Mean reward of the newest adapters."""
    steps: int | None = None
    """So many steps, in place of the goal."""

    def reason(self, seen: Learned, reward: float, watched: int) -> str:
        """Why it ends now; empty while it goes on."""
        if self.steps is not None and seen.steps >= self.steps:
            return f"{seen.steps} steps were taken"
        if self.steps is None and watched == WINDOW_EPISODES and reward >= self.goal and seen.steps >= 3:
            return f"the mean reward of the last {WINDOW_EPISODES} episodes reached {self.goal:.3f}"
        return "the time was over" if seen.train_seconds >= self.seconds else ""


@dataclass(slots=True)
class Learned:
    steps: int = 0
    train_seconds: float = 0.0
    stopped: str = ""


def goal(expert: float) -> float:
    """The mean reward at which there is nothing left to learn."""
    return expert - SHORT_OF_EXPERT * abs(expert)


async def engine_tokens(engine: str, http: httpx.AsyncClient) -> float | None:
    """Tokens that the engine has sampled, from its own metrics."""
    try:
        text = (await http.get(f"{engine}/metrics")).text
    except httpx.HTTPError:
        return None
    return DEFAULT_ENGINE.sampled_tokens(text)


async def newest_reward(client: AsyncClient) -> tuple[float, int]:
    """Mean reward of the newest ``WINDOW_EPISODES`` training episodes, and their count. The control arm is left out."""
    newest = (
        "SELECT reward FROM episodes WHERE split = 'train' AND arm <> 'control' AND reward IS NOT NULL "
        "ORDER BY ended DESC"
    )
    rows = (await client.sql(f"SELECT avg(reward), count(*) FROM ({newest} LIMIT {WINDOW_EPISODES}) AS newest")).rows
    return float(rows[0][0] or 0.0), int(rows[0][1])


class Watcher:
    """Looks at the stack once a second while the agent works."""

    def __init__(self, driver: TaskDriver, stack: Stack, progress: Progress, end: DemoEnd) -> None:
        self.driver, self.stack, self.progress = driver, stack, progress
        self.end = end
        self.seen = Learned()
        self.began = time.monotonic()
        self.first_step: float | None = None
        self.after = 0
        self.tokens, self.looked = 0.0, self.began
        self.reward, self.watched, self.asked = 0.0, 0, 0.0

    def note(self, events: list[Event]) -> None:
        """Count steps. The first one had begun before it was told."""
        self.after = max([self.after, *(e.id for e in events)])
        for event in events:
            if event.kind == "step":
                self.seen.steps += 1
                took = event.data.get("seconds", 0.0)
                began = time.monotonic() - (float(took) if isinstance(took, int | float) else 0.0)
                self.first_step = self.first_step or began

    async def look(self, client: AsyncClient, http: httpx.AsyncClient) -> bool:
        """One look. True when the agent has worked enough: ``seen.stopped`` says why."""
        try:
            events = await client.events(self.after)
            live = next(iter((await client.adapters()).live.values()), "")
            if time.monotonic() - self.asked > REWARD_EVERY:
                self.reward, self.watched = await newest_reward(client)
                self.asked = time.monotonic()
        except ApiError:
            return False
        self.note(events)
        now = time.monotonic()
        tokens = await engine_tokens(self.stack.config.engine.urls[0], http) or self.tokens
        rate, self.tokens, self.looked = (tokens - self.tokens) / (now - self.looked), tokens, now
        self.seen.train_seconds = now - self.first_step if self.first_step else 0.0
        self.progress.update(
            "training" if self.first_step else "gathering episodes for the first step",
            min(self.seen.train_seconds, self.end.seconds),
            self.end.seconds,
            episodes=self.driver.tally.episodes,
            reward=round(self.reward, 3),
            adapter=live,
            steps=self.seen.steps,
            tokens_per_s=round(rate),
        )
        self.seen.stopped = self.end.reason(self.seen, self.reward, self.watched)
        if not self.seen.stopped and self.first_step is None and now - self.began > FIRST_STEP_LIMIT:
            waiting = "; ".join((await client.status()).waiting)
            self.seen.stopped = f"no step in {FIRST_STEP_LIMIT:.0f} s: {waiting}"
        return bool(self.seen.stopped)


async def learn(driver: TaskDriver, stack: Stack, supervisor: Supervisor, progress: Progress, end: DemoEnd) -> Learned:
    """Let the agent work until ``end`` says that it is enough."""
    stop = asyncio.Event()
    working = asyncio.create_task(driver.work(stop))
    watcher = Watcher(driver, stack, progress, end)
    try:
        async with AsyncClient(stack.url) as client, httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            while not supervisor.stopping.is_set() and not working.done():
                await asyncio.sleep(1.0)
                if await watcher.look(client, http):
                    break
    finally:
        stop.set()
        await working
    return watcher.seen


async def settle(stack: Stack) -> str:
    """End the trainer, then wait until every adapter that it handed over is decided. Returns what is live."""
    if stack.trainer and stack.trainer.process:
        stack.trainer.restart = False
        if stack.trainer.process.returncode is None:
            stack.trainer.process.terminate()
            await stack.trainer.process.wait()
    end = time.monotonic() + 30
    async with AsyncClient(stack.url) as client:
        while True:
            adapters = await client.adapters()
            if time.monotonic() > end or not any(a.state == "loading" for a in adapters.adapters):
                return next(iter(adapters.live.values()))
            await asyncio.sleep(0.2)


def resume(stack: Stack, supervisor: Supervisor) -> None:
    """Start the trainer again that ``settle`` ended: it goes on from the accepted version."""
    if stack.trainer is not None:
        supervisor.children.remove(stack.trainer)
        stack.trainer.restart = True
        supervisor.start(stack.trainer)


async def recorded(url: str, expected: int) -> int:
    """Calls in the store, once it has caught up (or 20 s have passed)."""
    count = 0
    end = time.monotonic() + 20
    async with AsyncClient(url) as client:
        while count < expected and time.monotonic() < end:
            count = int((await client.sql("select count(*) from calls where outcome = 'ok'")).rows[0][0])
            await asyncio.sleep(0.25)
    return count
