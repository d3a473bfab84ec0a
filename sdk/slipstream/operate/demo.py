"""The demo: an unchanged agent gets better while it runs, on the real engine, proxy, store and trainer.

base success on held-out tasks → the agent works on training tasks, the trainer learns from its episodes, the proxy
swaps
adapters in → held-out success of the last adapter, a plot, one line of JSON
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

from slipstream.client import AsyncClient
from slipstream.config import Config, load_config
from slipstream.errors import ApiError, StartError
from slipstream.operate.curve import plot, success_curve
from slipstream.operate.progress import Progress
from slipstream.operate.stack import Stack, start_stack
from slipstream.operate.supervisor import Supervisor

HELD_OUT = 256
"""Tasks that are never trained on."""
CONCURRENCY = 32
GROUP = 8
WINDOW = 256
"""Episodes of the newest adapters over which success is watched."""
GOAL = 0.99
FIRST_STEP_LIMIT = 300.0
"""Seconds of work after which the first step should have been taken; later the demo ends and says what it waits for."""
TIME_LIMIT = 170.0
"""Seconds of training after the first step."""


def inbox_dir() -> Path:
    """The example's folder: inside an installed wheel, or beside the sources.

    Raises ``StartError`` where it is neither.
    """
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "examples" / "inbox", here.parents[1] / "examples" / "inbox"):
        if (folder / "agent.py").is_file():
            return folder
    raise StartError("the inbox example is not installed beside this package")


def load_agent() -> ModuleType:
    """The agent's own file, as it is."""
    folder = inbox_dir()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("inbox_agent", folder / "agent.py")
    if spec is None or spec.loader is None:
        raise StartError(f"{folder}/agent.py can't be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["inbox_agent"] = module
    spec.loader.exec_module(module)
    return module


def demo_config(seed: int, data_dir: Path, flags: list[str] | None = None, path: str | None = None) -> Config:
    """Where the model and the data are, a free port, and the seed. All else is what a user has by default."""
    base: dict[str, Any] = {
        "data_dir": str(data_dir),
        "engine": {"model": str(inbox_dir() / "model"), "name": "inbox"},
        "proxy": {"port": 0},
        "trainer": {"seed": seed},
    }
    return load_config(path, base=base, flags=flags or [])


@dataclass(slots=True)
class Tally:
    """What the driver saw with its own eyes."""

    calls: int = 0
    failed: int = 0
    episodes: int = 0


@dataclass(slots=True)
class Learned:
    steps: int = 0
    train_seconds: float = 0.0
    stopped: str = ""


class InboxDriver:
    """Runs the agent: ``CONCURRENCY`` episodes at once, groups of ``GROUP`` runs of each task."""

    def __init__(self, url: str, seed: int) -> None:
        self.agent = load_agent()
        self.client = self.agent.make_client(base_url=f"{url}/v1", concurrency=CONCURRENCY)
        self.seed = seed
        self.tally = Tally()
        self.reward = True
        """False: the agent posts no reward, a judge has to score."""

    async def episode(self, task: Any, episode_id: str, split: str) -> float:
        result = await self.agent.run_episode(
            self.client, task, episode_id=episode_id, split=split, post_reward=self.reward
        )
        self.tally.calls += result.calls
        return float(result.reward)

    def _note(self, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self.tally.failed += 1
            print(f"\nan episode failed: {outcome!r}", file=sys.stderr)
        else:
            self.tally.episodes += 1

    async def held_out(self, name: str, progress: Progress) -> float:
        """Success over ``HELD_OUT`` tasks of the eval split, once each, at temperature 1."""
        rewards: list[float] = []

        async def one(task: Any, index: int) -> None:
            async with slots:
                try:
                    rewards.append(await self.episode(task, f"{name}-{self.seed}-{index}", "eval"))
                except Exception as e:
                    self._note(e)
            progress.update(
                f"held-out tasks, {name}", len(rewards), HELD_OUT, success=sum(rewards) / max(1, len(rewards))
            )

        slots = asyncio.Semaphore(CONCURRENCY)
        tasks = self.agent.make_tasks("eval", HELD_OUT, self.seed)
        await asyncio.gather(*(one(task, i) for i, task in enumerate(tasks)))
        return sum(rewards) / HELD_OUT

    async def work(self, stop: asyncio.Event) -> None:
        """Training tasks, without end until ``stop``."""
        ids = itertools.takewhile(lambda _: not stop.is_set(), self.agent.schedule("train", self.seed, GROUP, None))
        await self.agent.run_all(
            ids, lambda task, i: self.episode(task, i, "train"), concurrency=CONCURRENCY, on_result=self._note
        )


async def _tokens(engine: str, http: httpx.AsyncClient) -> float | None:
    """Tokens that vLLM has sampled, from its own metrics."""
    try:
        text = (await http.get(f"{engine}/metrics")).text
    except httpx.HTTPError:
        return None
    lines = [line for line in text.splitlines() if line.startswith("vllm:generation_tokens_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def newest_success(client: AsyncClient) -> tuple[float, int]:
    """Mean reward of the newest ``WINDOW`` training episodes, and how many there are; the control arm's are left
    out.
    """
    newest = (
        "SELECT reward FROM episodes WHERE split = 'train' AND arm <> 'control' AND reward IS NOT NULL "
        "ORDER BY ended DESC"
    )
    rows = (await client.sql(f"SELECT avg(reward), count(*) FROM ({newest} LIMIT {WINDOW}) AS newest")).rows
    return float(rows[0][0] or 0.0), int(rows[0][1])


async def learn(
    driver: InboxDriver, stack: Stack, supervisor: Supervisor, progress: Progress, time_limit: float
) -> Learned:
    """Let the agent work until the newest adapter's success is at the goal, or the time is over."""
    stop = asyncio.Event()
    working = asyncio.create_task(driver.work(stop))
    seen = Learned()
    began = time.monotonic()
    first_step: float | None = None
    after, live, last_tokens, last_time = 0, "", 0.0, time.monotonic()
    engine = stack.config.engine.urls[0]
    try:
        async with AsyncClient(stack.url) as client, httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            while not supervisor.stopping.is_set() and not working.done():
                await asyncio.sleep(1.0)
                try:
                    events = await client.events(after)
                    live = next(iter((await client.adapters()).live.values()), "")
                    success, watched = await newest_success(client)
                except ApiError:
                    continue
                after = max([after, *(e.id for e in events)])
                for event in events:
                    if event.kind == "step":
                        seen.steps += 1
                        # the step had begun before it was told
                        took = event.data.get("seconds", 0.0)
                        first_step = first_step or time.monotonic() - (
                            float(took) if isinstance(took, int | float) else 0.0
                        )
                now, tokens = time.monotonic(), await _tokens(engine, http) or last_tokens
                rate, last_tokens, last_time = (tokens - last_tokens) / (now - last_time), tokens, now
                trained = now - first_step if first_step else 0.0
                progress.update(
                    "training" if first_step else "gathering episodes for the first step",
                    min(trained, time_limit),
                    time_limit,
                    episodes=driver.tally.episodes,
                    success=success,
                    adapter=live,
                    steps=seen.steps,
                    tokens_per_s=round(rate),
                )
                seen.train_seconds = trained
                if watched == WINDOW and success >= GOAL and seen.steps >= 3:
                    seen.stopped = f"success of the last {WINDOW} episodes reached {GOAL:.1%}"
                    break
                if trained >= time_limit:
                    seen.stopped = "the time was over"
                    break
                if first_step is None and now - began > FIRST_STEP_LIMIT:
                    seen.stopped = f"no step in {FIRST_STEP_LIMIT:.0f} s: {'; '.join((await client.status()).waiting)}"
                    break
    finally:
        stop.set()
        await working
    return seen


async def _settle(stack: Stack, supervisor: Supervisor) -> str:
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


@dataclass(slots=True)
class Options:
    seed: int = 0
    keep: bool = False
    data_dir: Path = Path("slipstream-data/demo")
    flags: list[str] = field(default_factory=list)
    config: str | None = None
    """A TOML file whose settings count above the demo's own."""
    time_limit: float = TIME_LIMIT
    post_reward: bool = True
    verbose: bool = False


async def demo(options: Options) -> int:
    """The whole of it. Returns the exit code; the last line on stdout is one JSON object."""
    folder = options.data_dir.resolve() / f"seed-{options.seed}"
    config = demo_config(options.seed, folder, options.flags, options.config)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    progress = Progress()
    log = (folder / "demo.log").open("w", buffering=1)

    def echo(name: str, line: str) -> None:
        log.write(f"{name:8} | {line}\n")
        if options.verbose:
            progress.say(f"{name:8} | {line}")

    supervisor = Supervisor(echo)
    supervisor.handle_signals()
    progress.say(f"logs: {folder / 'demo.log'}")
    try:
        stack = await start_stack(config, supervisor, progress.say)
        if supervisor.stopping.is_set():
            return 130
        progress.say(f"proxy {stack.url}/v1, page {stack.url}/")
        summary = await _run(options, stack, supervisor, progress, folder)
        if options.keep and not supervisor.stopping.is_set():
            progress.say(f"still running: OPENAI_BASE_URL={stack.url}/v1, page {stack.url}/ ; Ctrl-C ends it")
            print(json.dumps(summary), flush=True)
            await supervisor.wait()
            return 0
    finally:
        await supervisor.stop()
        log.close()
    print(json.dumps(summary), flush=True)
    return 0 if not any(c.gave_up for c in supervisor.children) else 1


async def _run(
    options: Options, stack: Stack, supervisor: Supervisor, progress: Progress, folder: Path
) -> dict[str, Any]:
    driver = InboxDriver(stack.url, options.seed)
    driver.reward = options.post_reward
    base = await driver.held_out("base", progress)
    progress.say(f"held-out success of the base model: {base:.1%} of {HELD_OUT} tasks")
    learned = await learn(driver, stack, supervisor, progress, options.time_limit)
    progress.say(f"{learned.steps} steps in {learned.train_seconds:.0f} s; {learned.stopped or 'stopped'}")
    live = await _settle(stack, supervisor)
    async with AsyncClient(stack.url) as client:  # the last step may have ended while the agent was stopping
        learned.steps = sum(e.kind == "step" for e in await client.events())
    last = await driver.held_out("last", progress)
    await driver.client.close()
    recorded = await _recorded(stack.url, driver.tally.calls)
    picture = folder / "success.png"
    plot(await success_curve(stack.url), base, last, picture, HELD_OUT)
    summary = {
        "success_base": round(base, 4),
        "success_last": round(last, 4),
        "train_seconds": round(learned.train_seconds, 1),
        "steps": learned.steps,
        "calls": driver.tally.calls,
        "recorded": recorded,
        "failed_calls": driver.tally.failed,
        "seed": options.seed,
        "adapter": live,
    }
    progress.say(f"held-out success: {base:.1%} with the base model, {last:.1%} with {live}")
    progress.say(f"calls: {driver.tally.calls} answered, {recorded} captured, {driver.tally.failed} failed")
    progress.say(f"plot: {picture}")
    return summary


async def _recorded(url: str, expected: int) -> int:
    """Calls in the store, once it has caught up (or 20 s have passed)."""
    count = 0
    end = time.monotonic() + 20
    async with AsyncClient(url) as client:
        while count < expected and time.monotonic() < end:
            count = int((await client.sql("select count(*) from calls where outcome = 'ok'")).rows[0][0])
            await asyncio.sleep(0.25)
    return count
