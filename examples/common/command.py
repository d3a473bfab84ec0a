"""The command line of a task's agent: run episodes against an endpoint, and print how they went."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat

from common.task import Item, Played, Task

__all__ = ["arguments", "main", "repeated", "run"]


def repeated(items: Iterator[Item], runs: int, count: int | None) -> Iterator[Item]:
    """Each item `runs` times in a row, `count` in all, or without end (None)."""
    return islice(chain.from_iterable(repeat(item, runs) for item in items), count)


async def run(task: Task, args: argparse.Namespace) -> int:
    """Run what the command line asks for. Returns the exit code: 1 when an episode failed."""
    agent = await task.open(args.base_url)
    played: list[Played] = []
    failed = 0
    left = repeated(task.items(args.split, args.seed), args.runs, args.episodes)
    began = time.monotonic()

    async def worker() -> None:
        nonlocal failed
        for item in left:
            try:
                played.append(await agent.episode(item, split=args.split, tagged=not args.untagged))
            except Exception as error:
                failed += 1
                print(f"an episode failed: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.2)  # an endpoint that is down is not hammered
                continue
            if len(played) % 64 == 0:
                last = [p.reward for p in played[-256:]]
                print(f"{len(played)} episodes, mean reward of the last {len(last)}: {sum(last) / len(last):.2f}")

    await asyncio.gather(*(worker() for _ in range(args.concurrency)))
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


def arguments(about: str | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of the endpoint, with /v1; default: what the framework's own variable says")
    parser.add_argument("--episodes", type=int, help="default: until stopped")
    parser.add_argument("--runs", type=int, default=8, help="episodes of one item in a row")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untagged", action="store_true", help="send no header and post no reward")
    return parser.parse_args()


def main(task: Task, about: str | None, *, variable: str = "OPENAI_BASE_URL") -> int:
    """Read the command line and run. `about`: what the command is for. `variable`: of the environment, the base URL."""
    args = arguments(about)
    args.base_url = args.base_url or os.environ.get(variable, "http://127.0.0.1:8100/v1")
    try:
        return asyncio.run(run(task, args))
    except KeyboardInterrupt:
        return 130
