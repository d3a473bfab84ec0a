"""What traffic teaches that no reward accompanied, as a share of what the same agent learns with grouped and rewarded runs.

    python benchmarks/traffic/bench_traffic.py [--only second_life] [--seed 0] [--episodes 2000] [--epochs 3]

The inbox demo on real vLLM. `rewarded` is `slipstream demo`: the agent posts rewards, and the trainer learns while it works. Each part beside it is a run of its own.

`feedback_words`: nobody posts a reward. A scripted user says after each run whose answer was wrong what its search should have been ("search for dana"), and nothing
about the others. The trainer learns from these words alone. `feedback_wrong`: the user names somebody else in a fifth of the cases.

`second_life`: the base model works on so many episodes while training is paused, and a rubric that is wrong (short runs are good) scores them. Then `slipstream judge rerun`
scores them with the right rubric (RULER, tests/support/ruled_judge.py), and `slipstream train --from-store` trains on them. No run is trained on that a later version made.

The last line is JSON, kept in benchmarks/results/traffic.json: of each part the held-out rewards `base` and `last`, and `share`, its gain over `rewarded`'s. A part that is not run again stays.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from tests.support.ruled_judge import RuledJudge, each
from tests.support.served import Served

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.contract import FeedbackIn, Group, TrainAgainIn
from slipstream.operate.demo.driver import CONCURRENCY, GROUP, TaskDriver
from slipstream.operate.demo.learning import settle
from slipstream.operate.demo.progress import Progress
from slipstream.operate.demo.task import demo_config, load_task, open_agent
from slipstream.operate.run.stack import Stack, start_stack
from slipstream.operate.run.supervisor import Supervisor
from slipstream_judge.run.rerun import rerun

RESULTS = ROOT / "benchmarks" / "results" / "traffic.json"
ROUND = 64
"""Runs of the agent between two pauses of ``feedback_words``."""
WRONG = "benchmarks.traffic.bench_traffic:short_is_good"


def short_is_good(group: Group) -> dict[str, float]:
    """A rubric that somebody regrets."""
    return {e.episode.id: -float(len(e.calls)) for e in group.episodes}


async def rewarded(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The demo as it is."""
    command = [sys.executable, "-m", "slipstream.cli", "demo", "--seed", str(args.seed), "--data-dir", str(folder)]
    command += ["--time-limit", str(args.time_limit)]
    ran = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    lines = (await ran.communicate())[0].decode().strip().splitlines()
    if ran.returncode or not lines:
        raise SystemExit(f"the demo ended with {ran.returncode}; its logs are in {folder}")
    found = json.loads(lines[-1])
    kept = ("steps", "episodes", "train_seconds")
    return {"base": found["success_base"], "last": found["success_last"], **{name: found[name] for name in kept}}


async def collect(driver: TaskDriver, episodes: int) -> None:
    """So many training runs, in groups."""
    items = driver.task.items("train", driver.seed)
    left = iter([item for item in itertools.islice(items, episodes // GROUP) for _ in range(GROUP)])

    async def worker() -> None:
        for item in left:
            await driver.episode(item, "train")

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))


async def judge_again(client: AsyncClient, **judge: object) -> dict[str, object]:
    """``slipstream judge rerun``."""
    return await rerun(Config.model_validate({"judge": judge}), client, 0.0, filters={"split": "train"})


async def passes_left(client: AsyncClient) -> int:
    """Of groups that are to be trained on again."""
    lines = (await client.status()).funnel.lines
    return sum(line.count for line in lines if line.cause == "again")


@asynccontextmanager
async def running(
    folder: Path, seed: int, progress: Progress, setting: str, *, post_reward: bool = True
) -> AsyncIterator[tuple[Stack, TaskDriver]]:
    """The inbox demo's stack with one setting more, and its agent."""
    task = load_task("inbox")
    config = demo_config(task, seed, folder, [setting])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stack.log").open("w", buffering=1) as log:
        supervisor = Supervisor(lambda name, line: print(f"{name:8} | {line}", file=log))
        supervisor.handle_signals()
        try:
            stack = await start_stack(config, supervisor, progress.say)
            agent = await open_agent(task, f"{stack.url}/v1")
            try:
                yield stack, TaskDriver(task, agent, seed, post_reward=post_reward)
            finally:
                await agent.close()
        finally:
            await supervisor.stop()


async def second_life(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One run. Returns its figures."""
    progress, judged = Progress(), "reward.weights={ judge = 1.0 }"
    async with running(folder, args.seed, progress, judged, post_reward=False) as (stack, driver):
        return await _second_life(stack, driver, progress, args)


async def _second_life(
    stack: Stack, driver: TaskDriver, progress: Progress, args: argparse.Namespace
) -> dict[str, Any]:
    base = await driver.held_out("base", progress)
    judge = RuledJudge(each(driver.task.rule))
    async with AsyncClient(stack.url, timeout=120.0) as client:
        await client.pause_training("to gather a record first")
        await collect(driver, args.episodes)
        first = await judge_again(client, function=WRONG)
        with Served(judge.app()) as url:
            ruled = {"model": "openai/ruled", "api_base": f"{url}/v1", "rubric": driver.task.rubric, "votes": 1}
            second = await judge_again(client, **ruled)
        plan = await client.train_again(TrainAgainIn(epochs=args.epochs))
        progress.say(f"stored: {first}; judged again: {second}; to train on: {plan}")
        began = time.monotonic()
        await client.resume_training()
        while time.monotonic() - began < args.time_limit * 2:
            left = await passes_left(client)
            progress.update("training on stored groups", plan.passes - left, plan.passes)
            if not left:
                break
            await asyncio.sleep(2.0)
        seconds = time.monotonic() - began
        left = await passes_left(client)
        live = await settle(stack)
        events = await client.events()
    steps = [e.data for e in events if e.kind == "step"]
    last = await driver.held_out("last", progress)
    return {
        "base": round(base.mean, 4),
        "last": round(last.mean, 4),
        "error_last": round(last.error, 4),
        "episodes": driver.tally.episodes,
        "groups": plan.groups,
        "passes": plan.passes,
        "passes_left": left,
        "left_out": plan.left_out,
        "steps": len(steps),
        "skipped": [e.data.get("reason") for e in events if e.kind in ("skipped", "undone")][:5],
        "unpublished": steps[-1].get("unpublished", 0) if steps else 0,
        "kl_engine": [round(float(d["kl_engine"]), 4) for d in steps[:: max(1, len(steps) // 6)] if "kl_engine" in d],
        "truncated": [round(float(d["truncated"]), 4) for d in steps[:: max(1, len(steps) // 6)] if "truncated" in d],
        "epochs": args.epochs,
        "train_seconds": round(seconds, 1),
        "adapter": live,
    }


class ScriptedUser:
    """Says what was wrong with a run whose answer was wrong, and nothing else. Nobody posts a reward.

    ``wrong``: in this share of the cases the user is mistaken about whom the mail is for.
    """

    def __init__(self, driver: TaskDriver, client: AsyncClient, wrong: float) -> None:
        self.driver, self.client, self.wrong = driver, client, wrong
        self.coin = random.Random(driver.seed)
        self.said = 0

    async def round(self, runs: Iterator[Any]) -> None:
        async def worker() -> None:
            for task in runs:
                await self.run(task)

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))

    async def run(self, task: Any) -> None:
        from inbox.agent import run_episode

        episode = f"{task.id}-{uuid.uuid4().hex[:12]}"
        result = await run_episode(self.driver.agent.client, task, episode_id=episode, post_reward=False)  # type: ignore[attr-defined]
        self.driver.tally.episodes += 1
        self.driver.tally.calls += result.calls
        if result.reward:
            return
        self.said += 1
        mistaken = self.coin.random() < self.wrong
        name = self.coin.choice([m.name for m in task.mails if m.name != task.name]) if mistaken else task.name
        first = (await self.client.episode_page(episode, calls=1)).call_list[0]
        await self.client.add_feedback(episode, FeedbackIn(text=f"search for {name}", call=first.id))


async def words(folder: Path, args: argparse.Namespace, wrong: float = 0.0) -> dict[str, Any]:
    """As many runs as ``rewarded`` had. The user speaks in words that the small model knows, so ``words_prompt`` adds none."""
    progress = Progress()
    async with running(folder, args.seed, progress, "trainer.words_prompt={words}") as (stack, driver):
        base = await driver.held_out("base", progress)
        async with AsyncClient(stack.url, timeout=120.0) as client:
            user = ScriptedUser(driver, client, wrong)
            items, began = driver.task.items("train", args.seed), time.monotonic()
            while driver.tally.episodes < args.runs:
                await user.round(itertools.islice(items, ROUND))
                await heard(client)
                progress.update("runs", driver.tally.episodes, args.runs, said=user.said)
            seconds = time.monotonic() - began
            live = await settle(stack)
            events = await client.events()
        last = await driver.held_out("last", progress)
    steps = [e.data for e in events if e.kind == "step"]
    return {
        "base": round(base.mean, 4),
        "last": round(last.mean, 4),
        "error_last": round(last.error, 4),
        "episodes": driver.tally.episodes,
        "calls": driver.tally.calls,
        "said": user.said,
        "refused": sum(d.get("words_refused", 0) for d in steps),
        "steps": len(steps),
        "skipped": [e.data.get("reason") for e in events if e.kind in ("skipped", "undone")][:5],
        "train_seconds": round(seconds, 1),
        "adapter": live,
    }


async def heard(client: AsyncClient, longest: float = 60.0) -> None:
    """Until what the user said so far is trained on, but for what is too little for a step."""
    until = time.monotonic() + longest
    while time.monotonic() < until:
        groups = (await client.status()).groups  # of runs, none is ready: they have no rewards
        if not groups.get("leased") and groups.get("ready", 0) < 2 * GROUP:
            return
        await asyncio.sleep(1.0)


async def words_wrong(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The same user, who is wrong in a fifth of the cases."""
    return await words(folder, args, wrong=0.2)


PARTS = {"rewarded": rewarded, "second_life": second_life, "feedback_words": words, "feedback_wrong": words_wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=2000, help="that second_life stores")
    parser.add_argument("--runs", type=int, default=528, help="of feedback_words: as many as rewarded had")
    parser.add_argument("--epochs", type=int, default=3, help="of second_life")
    parser.add_argument("--time-limit", type=float, default=170.0, help="seconds of training after a run's first step")
    parser.add_argument("--data-dir", type=Path, help="where the runs' folders stay; default: a temporary one")
    args = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "none")
    result: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.data_dir or Path(temporary)
        for name in [args.only] if args.only else PARTS:
            result[name] = asyncio.run(PARTS[name](folder / name, args)) | {"seed": args.seed}
    live = result.get("rewarded")
    for name, found in result.items():
        if live and name != "rewarded":
            found["share"] = round((found["last"] - found["base"]) / (live["last"] - live["base"]), 3)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
