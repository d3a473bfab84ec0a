"""A new user's first hour: their own agent, on another framework than the demo's, at the default settings.

    python -m benchmarks.first_hour.first_hour [--minutes 10] [--only tagged] [--seed 0]

From an empty folder: the built wheel in a fresh environment, `slipstream up --model tictactoe`, and the agent of examples/tictactoe
(LangGraph), which tags and posts rewards as the README says. Then once more untagged and without rewards, where a judge that takes a second
and has a budget says how the runs went. No setting is changed but those that name the judge.

The last line is one JSON object. `gain` is how much of the way from the first model's held-out reward to the best play's was covered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.first_hour.fresh import fresh_environment, plain_environment
from benchmarks.first_hour.watching import Watch, groups_lost
from benchmarks.harness import EXAMPLES, Up, report, say
from common.command import play_all, repeated
from common.task import Agent, Item
from tests.support.ruled_judge import RuledJudge, each
from tests.support.served import Served
from tictactoe.task import TASKS
from tictactoe.tictactoe import best_value, make_tasks, tasks_of

TICTACTOE = EXAMPLES / "tictactoe"
START_SECONDS = 240.0
CONCURRENCY = 8
RUNS = 8
"""Games of one opening in a row."""
JUDGE_SECONDS = 1.0
TOML = """\
[judge]
model = "openai/referee"
api_base = "{url}/v1"
rubric = "A won game is 1, a draw 0.5, anything else 0."
tokens_per_day = 20_000_000

[reward]
weights = {{ judge = 1.0 }}
"""


@dataclass
class Tally:
    """What the agent's own side saw."""

    rewards: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the start, reward) of the training games."""
    held_out: list[tuple[float, float]] = field(default_factory=list)
    """The same of the held-out games that are played beside them."""
    calls: int = 0
    failed: list[str] = field(default_factory=list)


def mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


async def held_out(agent: Agent, games: int, seed: int, tally: Tally) -> float:
    """Mean reward of held-out games, tagged as such."""
    tasks = iter(make_tasks("eval", games, seed))
    rewards: list[float] = []
    async for outcome in play_all(agent, tasks, concurrency=CONCURRENCY, split="eval"):
        if isinstance(outcome, Exception):
            tally.failed.append(repr(outcome))
        else:
            rewards.append(outcome.reward)
    return mean(rewards)


async def work(agent: Agent, watch: Watch, tally: Tally, seed: int, until: float, *, tagged: bool) -> None:
    """Train on the training openings until the clock, one player in nine on held-out ones beside it."""

    def before_the_end(tasks: Iterator[Item]) -> Iterator[Item]:
        for task in tasks:
            if watch.now() >= until:
                return
            yield task

    async def play(split: str, into: list[tuple[float, float]], concurrency: int, runs: int) -> None:
        tasks = before_the_end(repeated(TASKS["tictactoe"].items(split, seed), runs, None))
        tags = tagged or split == "eval"
        async for outcome in play_all(agent, tasks, concurrency=concurrency, split=split, tagged=tags):
            if isinstance(outcome, Exception):
                tally.failed.append(repr(outcome))
            else:
                into.append((watch.now(), outcome.reward))
                tally.calls += outcome.calls

    await asyncio.gather(
        play("train", tally.rewards, CONCURRENCY, RUNS),
        play("eval", tally.held_out, 1, 1),
    )


async def measure(url: str, args: argparse.Namespace, *, tagged: bool, folder: Path) -> dict[str, Any]:
    """Play for the minutes given, and say what came of it."""
    tally, watch = Tally(), Watch(url, time.monotonic())
    agent = await TASKS["tictactoe"].open(f"{url}/v1")
    watching = asyncio.create_task(watch.run())
    try:
        base = await held_out(agent, args.games, args.seed, tally)
        say(f"{watch.now():5.0f} s  held-out reward of the model as it is: {base:+.3f}")
        await work(agent, watch, tally, args.seed, args.minutes * 60, tagged=tagged)
        last = await held_out(agent, 2 * args.games, args.seed + 1, tally)
        await watch.read_events()
    finally:
        watching.cancel()
    expert = mean([best_value(task.board) for task in tasks_of("eval")])
    figures = {
        "first_adapter_s": watch.first_adapter,
        "gain": round((last - base) / (expert - base), 3),
        "groups_lost": round(groups_lost(watch.status), 3),
        "base": round(base, 3),
        "last": round(last, 3),
        "expert": round(expert, 3),
        "steps": watch.steps(),
        "live": watch.live,
        "games": len(tally.rewards),
        "calls": tally.calls,
        "failed": len(tally.failed),
        "groups": watch.status.get("groups"),
    }
    waiting = [{"at": at, "waiting": lines} for at, lines in watch.waiting]
    (folder / "first_hour.json").write_text(
        json.dumps(
            {
                **figures,
                "held_out": tally.held_out,
                "train": tally.rewards,
                "waiting": waiting,
                "events": watch.events,
                "status": watch.status,
                "failures": tally.failed[:20],
            },
            indent=1,
        )
    )
    say(json.dumps(figures))
    return figures


def one(slipstream: Path, folder: Path, args: argparse.Namespace, *, tagged: bool) -> dict[str, Any]:
    """One run from an empty folder."""
    folder.mkdir(parents=True)
    shutil.copytree(TICTACTOE / "model", folder / "tictactoe")
    command = [str(slipstream), "up", "--model", "tictactoe", *(["--port", str(args.port)] if args.port else [])]
    judge = RuledJudge(each(TASKS["tictactoe"].rule), latency=JUDGE_SECONDS)
    with Served(judge.app()) as judge_url:
        if not tagged:
            (folder / "slipstream.toml").write_text(TOML.format(url=judge_url))
            os.environ["OPENAI_API_KEY"] = "none"
            command += ["--config", "slipstream.toml"]
        with Up(command, folder / "up.log", cwd=folder, env=plain_environment()) as up:
            if not up.ready(START_SECONDS):
                raise SystemExit(f"`slipstream up` was not ready: {up.log}\n{up.text[-3000:]}")
            say(f"{' '.join(command[1:])}: ready after {up.ready_s:.0f} s, logs in {up.log}")
            figures = asyncio.run(measure(up.url, args, tagged=tagged, folder=folder))
    return {**figures, "judge_calls": len(judge.requests)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="from `up` being ready")
    parser.add_argument("--games", type=int, default=200, help="held-out games before; twice as many after")
    parser.add_argument("--only", choices=("tagged", "untagged"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, help="where the default port is taken")
    parser.add_argument("--folder", type=Path, help="where logs and figures stay; default: a temporary folder")
    parser.add_argument(
        "--least-gain", type=float, help="end with 1 below this gain (or above the limits of the two below)"
    )
    parser.add_argument("--most-first", type=float, default=180.0, help="seconds to the first adapter")
    parser.add_argument("--most-lost", type=float, default=0.05, help="share of complete groups")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="first-hour-"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    slipstream = fresh_environment(folder)
    result: dict[str, Any] = {"seed": args.seed, "minutes": args.minutes}
    if args.only != "untagged":
        result |= one(slipstream, folder / "tagged", args, tagged=True)
    if args.only != "tagged":
        untagged = one(slipstream, folder / "untagged", args, tagged=False)
        result |= {f"{name}_untagged": value for name, value in untagged.items()}
    report(result)
    return 0 if args.least_gain is None or good(result, args) else 1


def good(result: dict[str, Any], args: argparse.Namespace) -> bool:
    """Whether the tagged run met the limits."""
    first = result["first_adapter_s"]
    return bool(
        result["gain"] >= args.least_gain
        and first is not None
        and first <= args.most_first
        and result["groups_lost"] <= args.most_lost
        and not result["failed"]
    )


if __name__ == "__main__":
    sys.exit(main())
