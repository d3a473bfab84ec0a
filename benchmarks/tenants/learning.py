"""Two tenants with opposite tasks learn at once: one engine, one base in one trainer, real vLLM.

    python -m benchmarks.tenants.learning [--minutes 6] [--alone | --common] [--out benchmarks/results/tenants.json]

Both ask the inbox model the same questions. `named` wants a search for the person that the question is about, `unnamed`
a search without that name. Each has held-out questions. What is counted are runs until 95 of 100 of these are answered
as it wants; ``--alone`` lets each learn without the other, too, in a data folder of its own. ``--common``: what tenants
gain that share (``share = true``): one that comes when another has learned the same, and two that learn the same at
once, beside two that do not share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from benchmarks.harness import EXAMPLES, RESULTS, Up, child_env, report, say, slipstream
from inbox.agent import MAX_TOKENS, finish, make_client
from inbox.inbox import SYSTEM, TOOLS, Task, make_task, task_seed
from openai import AsyncOpenAI

GROUP_RUNS, GROUPS_AT_ONCE, HELD_OUT, GOAL = 8, 2, 64, 0.95
LOOK_EVERY = 64
"""Runs between two looks at the held-out questions."""


def searched(reply: Any) -> str | None:
    """The keywords that it searches for; None: it does something else."""
    calls = reply.choices[0].message.tool_calls or []
    if not calls or calls[0].function.name != "search":
        return None
    try:
        return str(json.loads(calls[0].function.arguments)["keywords"]).lower()
    except (ValueError, KeyError, TypeError):
        return None


def named(task: Task, keywords: str | None) -> float:
    return float(keywords is not None and task.name in keywords)


def unnamed(task: Task, keywords: str | None) -> float:
    return float(bool(keywords) and task.name not in str(keywords))


REWARDS: dict[str, Callable[[Task, str | None], float]] = {"named": named, "unnamed": unnamed}
LATER, TWIN = "late", "twin"
FIRST_TASKS = {LATER: 20_000, TWIN: 10_000}
"""End of a tenant's name, which begins with what it wants → its first question. The later one comes when all others
have learned."""


class Agent:
    """One tenant's."""

    def __init__(self, name: str, client: AsyncOpenAI, end: float) -> None:
        self.name, self.client, self.end = name, client, end
        self.began, self.runs, self.failed, self.looks = time.monotonic(), 0, 0, list[dict[str, float]]()
        self.wants = REWARDS[name.partition("-")[0]]
        self.next = FIRST_TASKS.get(name.partition("-")[2], 0)

    async def ask(self, task: Task, split: str) -> float | None:
        """→ Its reward. None: the call failed."""
        run = f"{self.name}-{uuid.uuid4().hex[:12]}"
        try:
            reply = await self.client.chat.completions.create(
                model="inbox",
                messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}],
                tools=TOOLS,
                max_tokens=MAX_TOKENS,
                extra_headers={
                    "x-slipstream-episode": run,
                    "x-slipstream-task": task.id,
                    "x-slipstream-split": split,
                },
            )
            value = self.wants(task, searched(reply))
            await finish(self.client, run, value)
        except Exception as e:
            self.failed += 1
            say(f"{self.name}: {type(e).__name__}: {e}")
            return None
        return value

    async def look(self) -> float:
        tasks = [make_task(task_seed("eval", i)) for i in range(HELD_OUT)]
        found = [v for v in await asyncio.gather(*(self.ask(t, "eval") for t in tasks)) if v is not None]
        mean = sum(found) / max(1, len(found))
        seconds = round(time.monotonic() - self.began, 1)
        self.looks.append({"runs": self.runs, "seconds": seconds, "held_out": round(mean, 3)})
        say(f"{self.name}: {self.runs} runs, {seconds:.0f} s, held out {mean:.2f}")
        return mean

    async def group(self) -> None:
        task = make_task(task_seed("train", self.next))
        self.next += 1
        found = await asyncio.gather(*(self.ask(task, "train") for _ in range(GROUP_RUNS)))
        self.runs += sum(value is not None for value in found)

    async def learn(self) -> None:
        """Until the goal is reached, or the time is over."""
        looked = 0
        best = await self.look()
        while best < GOAL and time.monotonic() < self.end:
            await asyncio.gather(*(self.group() for _ in range(GROUPS_AT_ONCE)))
            if self.runs - looked >= LOOK_EVERY:
                looked, best = self.runs, await self.look()


async def learn(url: str, keys: dict[str, str], minutes: float) -> dict[str, Agent]:
    end = time.monotonic() + 60 * minutes
    agents = {name: Agent(name, make_client(f"{url}/v1", key), end) for name, key in keys.items()}
    later = [agent for name, agent in agents.items() if name.endswith(LATER)]
    await asyncio.gather(*(agent.learn() for agent in agents.values() if agent not in later))
    await asyncio.gather(*(agent.learn() for agent in later))
    for agent in agents.values():
        await agent.client.close()
    return agents


def run(names: Sequence[str], folder: Path, minutes: float, *, share: bool = False) -> dict[str, Any]:
    """An `up` with these tenants. → What each reached."""
    settings = {
        "data_dir": str(folder / "data"),
        "proxy": {"port": 0},
        "engine": {
            "model": str(EXAMPLES / "inbox" / "model"), "name": "inbox", "max_model_len": 512, "tool_parser": "hermes", "args": ["--max-num-seqs", "64"],
        },
        "tenants": {name: {"share": share} for name in names},
    }  # fmt: skip
    config = folder / "slipstream.toml"
    config.write_text(tomli_w.dumps(settings))
    keys = {}
    for name in names:
        command = slipstream(
            "keys", "--config", str(config), "--tenant", name, "--json", "add", name, "--scopes", "inference,reward"
        )
        keys[name] = json.loads(subprocess.run(command, check=True, capture_output=True, env=child_env()).stdout)["key"]
    with Up([*slipstream("up", "--config", str(config)), "--verbose"], folder / "up.log", env=child_env()) as up:
        if not up.ready(400):
            raise SystemExit(f"up is not ready:\n{up.text[-4000:]}")
        agents = asyncio.run(learn(up.url, keys, minutes))
    steps = {name: len([*(folder / "data" / "tenants" / name / "adapters").glob("inbox@*")]) for name in names}
    return {
        name: {
            "reached": a.looks[-1]["held_out"] >= GOAL,
            **a.looks[-1],
            "versions": steps[name],
            "failed": a.failed,
            "looks": a.looks,
        }
        for name, a in agents.items()
    }


def report_common(minutes: float, out: Path) -> None:
    late, twin = f"named-{LATER}", f"named-{TWIN}"
    kinds = {"later": (("named", late), True), "at once": (("named", twin), True), "apart": (("named", twin), False)}
    found = {}
    for kind, (names, share) in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            found[kind] = run(names, Path(folder), minutes, share=share)
    before = json.loads(out.read_text()) if out.exists() else {}
    report({**before, "common_start": found}, out)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--common", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "tenants.json")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.common:
        report_common(args.minutes, args.out)
        return
    for names in [tuple(REWARDS), *([(n,) for n in REWARDS] if args.alone else [])]:
        with tempfile.TemporaryDirectory() as folder:
            found["together" if len(names) > 1 else f"{names[0]}_alone"] = run(names, Path(folder), args.minutes)
    before = json.loads(args.out.read_text()) if args.out.exists() else {}
    report({**before, "learning": found}, args.out)


if __name__ == "__main__":
    main()
