"""From an external model to your own: how much of the teacher's success its stored calls teach.

    python -m benchmarks.traffic.distill [--seed 0] [--runs 512] [--out FILE] [--time-limit 900]

The inbox demo on real vLLM. The teacher is a server of its own behind the proxy, recorded as text: it plays the task by a script, and slips in some of its runs.
First the agent asks the teacher for so many training runs and posts rewards. Then `slipstream distill --from teacher` makes an adapter of the small model, and the proxy's gate
decides on it while the agent works with the small model. The trainer is paused, so nothing else is learned.

The last line is JSON: held-out success of `base`, `teacher` and `distilled`, and `distill`, the distilled adapter's success over the teacher's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web
from benchmarks.harness import report, slipstream
from common.demo.driver import CONCURRENT_EPISODES, TaskDriver
from common.demo.task import demo_config, load_task, open_agent
from tests.support.served import Served

from slipstream.cli.common import child_env
from slipstream.client import AsyncClient
from slipstream.operate.run.stack import Stack, start_stack
from slipstream.shared.processes.supervisor import Supervisor
from slipstream.shared.progress import Progress

TEACHER = "teacher"
SLIPS = 0.1
"""Share of the teacher's runs in which it searches for the thing and not for the name: the first of several mails is often another one."""
ROUND = 64
"""Runs of the agent between two looks at the gate."""
QUESTION = re.compile(r"\bthe (\w+) for (\w+)")
DECIDED = ("live", "rolled_back", "refused", "retired")


class Teacher:
    """An OpenAI-compatible server that plays the inbox: it searches, reads the first hit, and answers the day in it."""

    def __init__(self, seed: int, slips: float = SLIPS) -> None:
        self.coin, self.slips = random.Random(seed), slips
        self.calls = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _chat(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.calls += 1
        name, arguments = self._act(asked["messages"])
        call = {"name": name, "arguments": json.dumps(arguments)}
        tool = {"id": f"call_{self.calls}", "type": "function", "function": call}
        message = {"role": "assistant", "content": None, "tool_calls": [tool], "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        kind = {"id": f"chatcmpl-{self.calls}", "object": "chat.completion", "created": int(time.time())}
        return web.json_response({**kind, "model": asked["model"], "choices": [choice], "usage": usage})

    def _act(self, messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        told = [m["content"] for m in messages if m["role"] == "tool"]
        if not told:
            question = next(m["content"] for m in messages if m["role"] == "user")
            thing, name = QUESTION.search(question).groups()  # type: ignore[union-attr]
            return "search", {"keywords": thing if self.coin.random() < self.slips else name}
        if found := re.match(r"mail (\d+)", told[-1]):
            return "read", {"id": int(found[1])}
        return "answer", {"text": told[-1].rpartition(" ")[2]}


async def distill(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One run. Returns its figures."""
    task, progress = load_task("inbox"), Progress()
    folder.mkdir(parents=True, exist_ok=True)
    with Served(Teacher(args.seed).app()) as upstream, (folder / "stack.log").open("w", buffering=1) as log:
        route = f'models={{ "{TEACHER}" = {{ upstream = "{upstream}/v1" }} }}'
        config = demo_config(task, args.seed, folder, [route])
        supervisor = Supervisor(lambda name, line: print(f"{name:8} | {line}", file=log))
        supervisor.handle_signals()
        try:
            stack = await start_stack(config, supervisor, progress.say)
            return await _distill(stack, progress, args)
        finally:
            await supervisor.stop()


async def _distill(stack: Stack, progress: Progress, args: argparse.Namespace) -> dict[str, Any]:
    from inbox.agent import make_client
    from inbox.task import Searcher

    began = time.monotonic()
    task = load_task("inbox")
    agent = await open_agent(task, f"{stack.url}/v1")
    own = TaskDriver(task, agent, args.seed)
    taught = TaskDriver(task, Searcher(make_client(f"{stack.url}/v1"), TEACHER), args.seed)
    async with AsyncClient(stack.url, timeout=120.0) as client:
        await client.pause_training("the distilled version alone is measured")
        base = await own.held_out("base", progress)
        teacher = await taught.held_out("teacher", progress)
        await runs(taught, itertools.islice(task.items("train", args.seed), args.runs))
        trained = time.monotonic()
        made = await run_command(stack, args)
        seconds = time.monotonic() - trained
        # other items than the teacher's, so that the gate sees what was not trained on
        items = itertools.islice(task.items("train", args.seed), args.runs, None)
        state = await decided(client, own, items, made["adapter"], args.time_limit - (time.monotonic() - began))
        last = await own.held_out("distilled", progress)
        found = await client.adapters()
    await agent.close()
    await taught.agent.close()
    return {
        "base": round(base.mean, 4),
        "teacher": round(teacher.mean, 4),
        "distilled": round(last.mean, 4),
        "error_distilled": round(last.error, 4),
        "distill": round(last.mean / teacher.mean, 4),
        "gate": state,
        "live": next(iter(found.live.values())),
        "gate_runs": own.tally.episodes,
        "teacher_runs": args.runs,
        "distill_seconds": round(seconds, 1),
        **{name: made[name] for name in ("runs", "rows", "left_out", "loss_base", "loss", "steps")},
        "seconds": round(time.monotonic() - began, 1),
        "seed": args.seed,
    }


async def runs(driver: TaskDriver, items: Any) -> None:
    """One run of each."""

    async def worker() -> None:
        for item in items:
            await driver.episode(item, "train")

    await asyncio.gather(*(worker() for _ in range(CONCURRENT_EPISODES)))


async def run_command(stack: Stack, args: argparse.Namespace) -> dict[str, Any]:
    """`slipstream distill`, as a user starts it beside the running stack."""
    command = slipstream("distill", "--json", "--from", TEACHER, "--url", stack.url)
    command += ["--method", args.method]
    ran = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env=os.environ | child_env(stack.config)
    )
    told = (await ran.communicate())[0].decode().strip().splitlines()
    if ran.returncode or not told:
        raise SystemExit(f"slipstream distill ended with {ran.returncode}")
    return dict(json.loads(told[-1]))


async def decided(client: AsyncClient, driver: TaskDriver, items: Any, name: str, seconds: float) -> str:
    """The agent works until the gate has decided on the version. → Its state."""
    until, state = time.monotonic() + seconds, "loading"
    while time.monotonic() < until:
        await runs(driver, itertools.islice(items, ROUND))
        found = next(a for a in (await client.adapters()).adapters if a.name == name)
        state = found.state.value
        if state in DECIDED:
            break
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=512, help="of the teacher, one each of so many tasks")
    parser.add_argument("--method", choices=("sft", "dpo", "kto"), default="sft")
    parser.add_argument("--out", type=Path, help="where the JSON goes, too")
    parser.add_argument("--time-limit", type=float, default=900.0, help="seconds until the gate should have decided")
    parser.add_argument("--data-dir", type=Path, help="where the run's folder stays; default: a temporary one")
    args = parser.parse_args()
    os.environ.setdefault("OPENAI_API_KEY", "none")
    with tempfile.TemporaryDirectory() as temporary:
        result = asyncio.run(distill(args.data_dir or Path(temporary), args))
    report(result, args.out)


if __name__ == "__main__":
    main()
