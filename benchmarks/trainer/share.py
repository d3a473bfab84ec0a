"""One GPU for engine and trainer: what agents notice of it.

    python benchmarks/trainer/share.py --model FOLDER [--steps 4] [--streams 32] [--set trainer.token_budget=8192] …

Starts ``slipstream up`` with ``engine.share = true`` on the model, lets streams of episodes run without a pause (each is rewarded at random, so
that every group trains), and waits for so many steps. The last line is one JSON object: ``seconds_lost_per_step`` (no call began), its parts, the
``longest_wait_s`` that a caller saw (for the first byte, or between two pieces of a stream), ``failed_calls``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "curves"))

from real_stack import Stack, end, launch

LEAVING = 60.0
"""Seconds that `slipstream up` has to end."""
SETTINGS = [
    "proxy.port=0", "proxy.durability=process", "engine.share=true", "engine.name=shared", "gate.mode=guard", "gate.holdout=0", "groups.size=4",
    "trainer.min_groups=2", "trainer.max_groups=4", "trainer.max_wait=1", "trainer.learning_rate=1e-5",
    "trainer.max_kl=1000", "trainer.max_ratio=1000000000", "trainer.max_grad=1e12", "trainer.max_engine_kl=1e12",
]  # fmt: skip
"""Random weights and random rewards: nothing is to be refused here for what it does to the policy."""


def load_arguments(parser: argparse.ArgumentParser, *, tokens: int) -> None:
    """What ``Load`` reads of a command line."""
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=tokens, help="sampled tokens of a call")
    parser.add_argument("--prompt", type=int, default=50, help="length of the prompt, in phrases of five words")


class Load:
    def __init__(self, url: str, args: argparse.Namespace) -> None:
        self.url, self.args = url, args
        self.stop = asyncio.Event()
        self.first: list[float] = []
        self.gaps: list[float] = []
        self.calls = self.failed = self.tokens = 0
        self.errors: list[str] = []

    async def call(
        self, http: httpx.AsyncClient, episode: str, task: str, messages: list[dict[str, str]], *, done: bool
    ) -> str:
        headers = {"x-slipstream-episode": episode, "x-slipstream-task": task} | (
            {"x-slipstream-done": "true"} if done else {}
        )
        body = {
            "model": "shared", "messages": messages, "stream": True, "max_tokens": self.args.tokens, "temperature": 1.0,
        }  # fmt: skip
        began = last = time.perf_counter()
        said, ended, longest, first = "", False, 0.0, None
        async with http.stream("POST", f"{self.url}/v1/chat/completions", json=body, headers=headers) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"{reply.status_code}: {(await reply.aread()).decode(errors='replace')[:300]}")
            async for line in reply.aiter_lines():
                if not line.startswith("data: "):
                    continue
                now = time.perf_counter()
                if first is None:
                    first = now - began
                else:
                    longest = max(longest, now - last)
                last = now
                if line == "data: [DONE]":
                    ended = True
                    break
                for choice in json.loads(line[6:]).get("choices", []):
                    said += choice["delta"].get("content") or ""
                    self.tokens += 1
        if not ended:
            raise RuntimeError("a stream ended without its end")
        self.first.append(first or 0.0)
        self.gaps.append(longest)
        return said

    async def episodes(self, http: httpx.AsyncClient, lane: int) -> None:
        """One after another; four lanes work at the same task."""
        number = 0
        while not self.stop.is_set():
            number += 1
            episode, task = f"l{lane}n{number}", f"t{lane // 4}n{number}"
            messages = [{"role": "user", "content": f"Task {task}. " + "Say something about it. " * self.args.prompt}]
            try:
                for turn in range(self.args.turns):
                    self.calls += 1
                    said = await self.call(http, episode, task, messages, done=turn == self.args.turns - 1)
                    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
                await http.post(f"{self.url}/slipstream/v1/episodes/{episode}/rewards", json={"value": random.random()})
            except (httpx.HTTPError, RuntimeError, KeyError, ValueError) as e:
                self.failed += 1
                self.errors.append(repr(e)[:300])
                await asyncio.sleep(0.5)

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=900, trust_env=False, limits=limits) as http:
            await asyncio.gather(*(self.episodes(http, n) for n in range(self.args.streams)))


def events(url: str) -> list[dict[str, Any]]:
    text = httpx.get(f"{url}/slipstream/v1/training/events", timeout=30, trust_env=False).text
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def measure(url: str, args: argparse.Namespace) -> dict[str, Any]:
    load = Load(url, args)
    running = asyncio.create_task(load.run())
    began, steps, seen = time.monotonic(), [], 0
    while len(steps) < args.steps and time.monotonic() - began < args.timeout:
        await asyncio.sleep(0.5)
        found = await asyncio.to_thread(events, url)
        for e in found[seen:]:
            if e["kind"] in ("step", "skipped", "undone"):
                print(
                    f"{time.monotonic() - began:7.1f} s  {e['kind']}  {json.dumps(e['data'])[:600]}",
                    file=sys.stderr,
                    flush=True,
                )
        seen, steps = len(found), [e["data"] for e in found if e["kind"] == "step"]
    seconds = time.monotonic() - began
    load.stop.set()
    await running
    longest_hold = await asyncio.to_thread(metric, url, "slipstream_hold_longest_seconds")
    later = steps[1:] or steps  # the first one compiles

    def mean(name: str) -> float | None:
        return statistics.fmean(s[name] for s in later) if later else None

    return {
        "steps": len(steps), "seconds_lost_per_step": mean("hold_seconds"), "seconds_lost_first_step": steps[0]["hold_seconds"] if steps else None,
        "sleep_s": mean("sleep_seconds"), "wake_s": mean("wake_seconds"), "step_s": mean("seconds"), "tokens_per_step": mean("tokens"),
        "longest_wait_s": max([*load.first, *load.gaps], default=None), "median_first_byte_s": statistics.median(load.first) if load.first else None,
        "longest_hold_of_a_call_s": longest_hold, "held_calls": await asyncio.to_thread(metric, url, "slipstream_held_calls_total"),
        "calls": load.calls, "failed_calls": load.failed, "errors": load.errors[:5], "streams": args.streams,
        "output_tokens_per_s": load.tokens / seconds, "seconds": seconds,
    }  # fmt: skip


def start(args: argparse.Namespace, folder: Path) -> Stack:
    log = Path(args.log) if args.log else folder / "up.log"
    argv, settings = ["up", "--model", str(args.model)], [*SETTINGS, f"data_dir={folder}", *args.set]
    stack = Stack(launch(argv, settings, log), log, "")
    if stack.ready(time.monotonic() + args.timeout):
        return stack
    end(stack.process, LEAVING)
    raise SystemExit(f"`slipstream up` did not start:\n{stack.text[-4000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    load_arguments(parser, tokens=200)
    parser.add_argument("--timeout", type=float, default=480.0, help="seconds for the start, and for the steps")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument("--log", help="where the output of `slipstream up` goes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        stack = start(args, Path(folder))
        try:
            found = asyncio.run(measure(stack.url, args))
        finally:
            end(stack.process, LEAVING)
            tail = [line for line in stack.text.splitlines() if line.startswith(("trainer", "slipstream", "proxy"))]
            print("\n".join(tail[-25:]), file=sys.stderr)
    print(json.dumps({"benchmark": "share", "model": args.model.name, "settings": args.set, **found}))
    return 0 if found["steps"] >= args.steps and not found["failed_calls"] else 1


if __name__ == "__main__":
    sys.exit(main())
