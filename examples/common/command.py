"""The command line of a task's agent: run episodes against an endpoint, and print how they went."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, islice, repeat

from common.task import Agent, Item, Played, Task

__all__ = ["arguments", "main", "play_all", "repeated", "run"]


def repeated(items: Iterator[Item], runs: int, count: int | None) -> Iterator[Item]:
    """Each item `runs` times in a row, `count` in all, or without end (None)."""
    return islice(chain.from_iterable(repeat(item, runs) for item in items), count)


async def play_all(
    agent: Agent, items: Iterator[Item], *, concurrency: int, split: str = "train", tagged: bool = True
) -> AsyncIterator[Played | Exception]:
    """Run an episode of each item, `concurrency` at a time. Yield each, or the error that ended it, when it ends."""
    ended: asyncio.Queue[Played | Exception | None] = asyncio.Queue()

    async def worker() -> None:
        for item in items:
            try:
                ended.put_nowait(await agent.episode(item, split=split, tagged=tagged))
            except Exception as error:
                ended.put_nowait(error)
                await asyncio.sleep(0.2)  # an endpoint that is down is not hammered
        ended.put_nowait(None)

    workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
    try:
        for _ in workers:
            while (outcome := await ended.get()) is not None:
                yield outcome
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def run(task: Task, args: argparse.Namespace) -> int:
    """Run what the command line asks for. Returns the exit code: 1 when an episode failed."""
    agent = await task.open(args.base_url)
    items = repeated(task.items(args.split, args.seed), args.runs, args.episodes)
    played: list[Played] = []
    failed = 0
    began = time.monotonic()
    async for outcome in play_all(
        agent, items, concurrency=args.concurrency, split=args.split, tagged=not args.untagged
    ):
        if isinstance(outcome, Exception):
            failed += 1
            print(f"an episode failed: {outcome!r}", file=sys.stderr, flush=True)
            continue
        played.append(outcome)
        if len(played) % 64 == 0:
            last = [p.reward for p in played[-256:]]
            print(f"{len(played)} episodes, mean reward of the last {len(last)}: {sum(last) / len(last):.2f}")
    await agent.close()
    figures = {
        "episodes": len(played),
        "failed": failed,
        "reward": round(sum(p.reward for p in played) / max(1, len(played)), 4),
        "calls": sum(p.calls for p in played),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures))
    return 1 if failed else 0


def arguments(about: str | None) -> argparse.ArgumentParser:
    """The options that all tasks' agents have. `about`: what the command is for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of the endpoint, with /v1; default: what the framework's own variable says")
    parser.add_argument("--model", help="the name that the endpoint serves; default: the task's name")
    parser.add_argument("--episodes", type=int, help="default: until stopped")
    parser.add_argument("--runs", type=int, default=8, help="episodes of one item in a row")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untagged", action="store_true", help="send no header and post no reward")
    return parser


def main(
    task: Task | Callable[[argparse.Namespace], Task],
    options: argparse.ArgumentParser,
    *,
    variable: str = "OPENAI_BASE_URL",
) -> int:
    """Read the command line and run. `task`: one, or what the options make. `variable`: of the environment, the base URL."""
    args = options.parse_args()
    args.base_url = args.base_url or os.environ.get(variable, "http://127.0.0.1:8100/v1")
    chosen = task if isinstance(task, Task) else task(args)
    chosen.name = args.model or chosen.name
    try:
        return asyncio.run(run(chosen, args))
    except KeyboardInterrupt:
        return 130
