"""The demo: an unchanged agent gets better while it runs, on the real engine, proxy, store and trainer.

base reward on held-out items → the agent works on training items, the trainer learns from its episodes, the proxy
swaps adapters in → held-out reward of the last adapter, a plot, one line of JSON
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from common.demo.curve import LearningCurve, plot, read_curve
from common.demo.driver import RewardSample, TaskDriver
from common.demo.learning import DemoEnd, goal, learn, recorded, resume, settle
from common.demo.task import demo_config, load_task, open_agent
from slipstream.client import AsyncClient
from slipstream.operate.run.stack import Stack, start_stack
from slipstream.shared.intervals import mean_interval, reward_bounds, told
from slipstream.shared.processes.supervisor import Supervisor
from slipstream.shared.progress import Progress

TIME_LIMIT = 170.0
"""Seconds of training after the first step."""
DEMO_TASK = "inbox"


@dataclass(slots=True)
class Options:
    seed: int = 0
    keep: bool = False
    data_dir: Path = Path("slipstream-data/demo")
    flags: list[str] = field(default_factory=list)
    config: str | None = None
    """A TOML file whose settings count above the demo's own."""
    time_limit: float = TIME_LIMIT
    steps: int | None = None
    """End after so many, not where the agent is as good as the expert."""
    post_reward: bool = True
    verbose: bool = False
    task: str = DEMO_TASK
    axis: str = "version"

    @property
    def folder(self) -> Path:
        """Where a run's files are: of the inbox ``seed-0``, of another task ``NAME-seed-0``."""
        prefix = "" if self.task == DEMO_TASK else f"{self.task}-"
        return self.data_dir.resolve() / f"{prefix}seed-{self.seed}"


async def demo(options: Options) -> int:
    """The whole of it. Returns the exit code; the last line on stdout is one JSON object."""
    task, folder = load_task(options.task), options.folder
    await (await open_agent(task)).close()  # what is not installed is told before anything starts
    config = demo_config(task, options.seed, folder, options.flags, options.config)
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
        agent = await open_agent(task, f"{stack.url}/v1")
        driver = TaskDriver(task, agent, options.seed, post_reward=options.post_reward)
        try:
            summary = await _run(options, driver, stack, supervisor, progress)
            if options.keep and not supervisor.stopping.is_set():
                progress.say(f"agent and trainer go on: page {stack.url}/ ; Ctrl-C ends it")
                print(json.dumps(summary), flush=True)
                await driver.work(supervisor.stopping)
                return await supervisor.wait()
        finally:
            await agent.close()
    finally:
        await supervisor.stop()
        log.close()
    print(json.dumps(summary), flush=True)
    return 0 if not any(c.gave_up for c in supervisor.children) else 1


async def _run(
    options: Options, driver: TaskDriver, stack: Stack, supervisor: Supervisor, progress: Progress
) -> dict[str, object]:
    task = driver.task
    expert = task.expert(driver.held_out_items())
    base = await driver.held_out("base", progress)
    progress.say(f"held-out reward of the base model: {_told(base)}; a scripted expert has {expert:.3f}")
    # without posted rewards the store has the judge's, from 0 to 1
    reach = goal(expert if options.post_reward else 1.0)
    end = DemoEnd(options.time_limit, reach, options.steps)
    learned = await learn(driver, stack, supervisor, progress, end)
    progress.say(f"{learned.steps} steps in {learned.train_seconds:.0f} s; {learned.stopped or 'stopped'}")
    live = await settle(stack)
    async with AsyncClient(stack.url) as client:  # the last step may have ended while the agent was stopping
        learned.steps = sum(e.kind == "step" for e in await client.events())
    last = await driver.held_out("last", progress)
    if options.keep and not supervisor.stopping.is_set():
        resume(stack, supervisor)
    captured = await recorded(stack.url, driver.tally.calls)
    summary: dict[str, object] = {
        "task": task.name,
        "success_base": round(base.mean, 4),
        "success_last": round(last.mean, 4),
        "error_base": round(base.error, 4),
        "error_last": round(last.error, 4),
        "expert": round(expert, 4),
        "train_seconds": round(learned.train_seconds, 1),
        "steps": learned.steps,
        "episodes": driver.tally.episodes,
        "calls": driver.tally.calls,
        "recorded": captured,
        "failed_calls": driver.tally.failed,
        "seed": options.seed,
        "adapter": live,
    }
    progress.say(f"held-out reward: {_told(base)} with the base model, {_told(last)} with {live} (95 % intervals)")
    progress.say(f"calls: {driver.tally.calls} answered, {captured} captured, {driver.tally.failed} failed")
    curve = await read_curve(stack.url, task.name)
    curve.held_out = [(base.mean, base.error, len(base.rewards)), (last.mean, last.error, len(last.rewards))]
    curve.expert = expert
    progress.say(f"plot: {_keep(curve, summary, options)}")
    return summary


def _told(sample: RewardSample) -> str:
    """As on every other screen."""
    if not sample.rewards:
        return "unknown (no episode)"
    low, high = reward_bounds(min(sample.rewards), max(sample.rewards))
    n = len(sample.rewards)
    return f"{told(sample.mean, *mean_interval(sample.mean, sample.error * n**0.5, n, low, high))} of {n} episodes"


def _keep(curve: LearningCurve, summary: dict[str, object], options: Options) -> Path:
    """Write the curve's figures and its picture. Returns the picture's path."""
    (options.folder / "curve.json").write_text(json.dumps({**summary, "curve": curve.as_json()}, indent=1))
    picture = options.folder / "success.png"
    plot(curve, picture, axis=options.axis)
    return picture
