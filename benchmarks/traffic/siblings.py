"""Does a greedy agent's traffic teach through siblings? And what does the agent feel of them?

    python -m benchmarks.traffic.siblings [--calls 1200] [--seed 0] [--only grouped|siblings|latency]

The inbox task twice, with as many agent calls. ``grouped``: temperature 1, eight runs of each task with its tag, rewards posted, in rounds as below.
``siblings``: the agent is greedy, tags no task and posts nothing. A function judges the siblings of each step (``score``: is it what a good
searcher does next?), which come in the pauses between the agent's rounds. ``gain_share`` is the second gain in held-out success over the first one, both
at temperature 1. ``latency``: the time of an agent's calls with siblings and without, before an engine whose steps take longer the more it has to do.
Real vLLM on CPU, but for ``latency``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import random
import re
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples"), str(ROOT / "benchmarks" / "first_hour")]

if TYPE_CHECKING:
    from aiohttp import web

    from slipstream.contract import Group

CONCURRENCY = 8
RUNS = 8
ROUND = 120
"""Calls of the agent between two pauses."""
HELD_OUT = 256
QUESTION = re.compile(r"\bthe (\w+) for (\w+)\b(?!:)|the (\w+) for (\w+) is")
LISTED = re.compile(r"mail (\d+): (\w+) (\w+)")
READ = re.compile(r"^the (\w+) for (\w+): (\w+)$")


def score(group: Group) -> dict[str, float]:
    """``judge.function``: 1 for what a good searcher does next, half for the right tool, else 0."""
    return {one.episode.id: step_score(one.calls[0].messages, one.calls[0].reply[0]) for one in group.episodes}


def step_score(messages: list[Any], reply: Any) -> float:
    """Of a call's history and its reply. It knows the task's rules, and of the mailbox what the history shows."""
    asked = QUESTION.search(str(messages[1]["content"]))
    calls = (reply or {}).get("tool_calls") or []
    if asked is None or not calls:
        return 0.0
    name = asked[2] or asked[4]
    results = [str(m.get("content")) for m in messages if m.get("role") == "tool"]
    read = next((m[3] for r in reversed(results) if (m := READ.match(r)) and m[2] == name), None)
    listed = next((m[0] for r in reversed(results) for m in LISTED.findall(r) if m[2] == name), None)
    wanted = ("answer", "text", read) if read else ("read", "id", listed) if listed else ("search", "keywords", name)
    function = calls[0].get("function") or {}
    if function.get("name") != wanted[0]:
        return 0.0
    try:
        given = str(json.loads(function.get("arguments") or "{}").get(wanted[1]))
    except (ValueError, AttributeError):
        return 0.0
    return 1.0 if given.strip().lower() == wanted[2] else 0.5


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


# --- learning


class Runs:
    """The inbox agent against a proxy."""

    def __init__(self, url: str, seed: int) -> None:
        from inbox.agent import make_client
        from inbox.inbox import make_task, task_seed

        self.client = make_client(f"{url}/v1")
        self.seed = seed
        self.tasks = (make_task(task_seed("train", n, seed)) for n in itertools.count())
        self.failed = 0

    async def play(self, task: Any, split: str, **how: Any) -> Any:
        from inbox.agent import run_episode

        return await run_episode(self.client, task, episode_id=f"e-{uuid.uuid4().hex[:16]}", split=split, **how)

    async def round(self, *, greedy: bool) -> int:
        """About ``ROUND`` calls. → How many."""
        calls = 0
        source = self.tasks if greedy else itertools.chain.from_iterable(itertools.repeat(t, RUNS) for t in self.tasks)

        async def worker() -> None:
            nonlocal calls
            for task in source:
                if calls >= ROUND:
                    return
                try:
                    how = {"temperature": 0.0, "tagged": False} if greedy else {"temperature": 1.0}
                    played = await self.play(task, "train", **how)
                    calls += played.calls
                except Exception as error:
                    self.failed += 1
                    say(f"an episode failed: {error!r}"[:300])
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
        return calls

    async def held_out(self, temperature: float) -> float:
        from inbox.inbox import make_tasks

        tasks = iter(make_tasks("eval", HELD_OUT, self.seed))
        rewards: list[float] = []

        async def worker() -> None:
            for task in tasks:
                rewards.append((await self.play(task, "eval", temperature=temperature, post_reward=False)).reward)

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
        return sum(rewards) / len(rewards)


async def idle(url: str, longest: float) -> dict[str, Any]:
    """Until nothing waits that the trainer could still learn from, or so many seconds. → The status."""
    import httpx

    until, quiet = time.monotonic() + longest, 0
    async with httpx.AsyncClient(timeout=30) as http:
        while True:
            answer = await http.get(f"{url}/slipstream/v1/status")
            if answer.status_code == 503:  # the machine is busy
                await asyncio.sleep(0.5)
                continue
            status: dict[str, Any] = answer.raise_for_status().json()
            waits = any("until no agent's call" in line for line in status["waiting"])
            busy = waits or any(status["groups"].get(s) for s in ("waiting_reward", "leased"))
            busy = busy or status["groups"].get("ready", 0) >= 4
            quiet = 0 if busy else quiet + 1
            if quiet >= 4 or time.monotonic() > until:
                return status
            await asyncio.sleep(0.5)


async def learn(url: str, calls: int, seed: int, *, greedy: bool) -> dict[str, Any]:
    runs = Runs(url, seed)
    base = {t: await runs.held_out(t) for t in (1.0, 0.0)}
    say(f"held-out success of the base: {base[1.0]:.3f}, greedy {base[0.0]:.3f}")
    began, done, status = time.monotonic(), 0, {}
    while done < calls:
        done += await runs.round(greedy=greedy)
        status = await idle(url, 30.0)
        say(f"{done} calls, live {status['models']}, groups {status['groups']}, siblings {status['siblings']}")
    status = await idle(url, 60.0)
    seconds = time.monotonic() - began
    last = {t: await runs.held_out(t) for t in (1.0, 0.0)}
    say(f"held-out success of {status['models']}: {last[1.0]:.3f}, greedy {last[0.0]:.3f}")
    await runs.client.close()
    return {
        "calls": done,
        "base": round(base[1.0], 3),
        "last": round(last[1.0], 3),
        "gain": round(last[1.0] - base[1.0], 3),
        "base_greedy": round(base[0.0], 3),
        "last_greedy": round(last[0.0], 3),
        "siblings": status["siblings"],
        "steps": status["steps"],
        "seconds": round(seconds),
        "failed": runs.failed,
    }


def arm(folder: Path, args: argparse.Namespace, *, greedy: bool) -> dict[str, Any]:
    """One arm from an empty folder."""
    from fresh import Up
    from tests.support import MODEL, free_port

    folder.mkdir(parents=True)
    sets: list[str] = []
    if greedy:
        (folder / "steps.py").write_text(
            f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom benchmarks.traffic.siblings import score\n"
        )
        route = f"{{ explore = 'siblings', explore_share = 1.0, explore_samples = {args.samples}, explore_tokens = 10000000 }}"
        sets += ["judge.function='steps:score'", f"models={{ inbox = {route} }}"]
    command = [str(Path(sys.executable).with_name("slipstream")), "up", "--model", str(MODEL), "--name", "inbox"]
    command += ["--port", str(free_port()), *(x for s in sets for x in ("--set", s))]
    up = Up(command, folder)
    with up as url:
        say(f"ready after {up.ready_seconds:.0f} s, log in {up.log}")
        return asyncio.run(learn(url, args.calls, args.seed, greedy=greedy))


# --- what the agent feels

STEP, EACH, TOKENS = 0.004, 0.03, 20
"""Seconds of an engine's step with one request; how much longer it takes with one more; steps of a reply."""


def stepping_engine() -> Any:
    """An engine that samples a token of each request a step."""
    from tests.support.fake_engine import FakeEngine

    class SteppingEngine(FakeEngine):
        def __init__(self) -> None:
            super().__init__()
            self.running = self.most = self.siblings = 0

        async def chat(self, request: web.Request) -> web.StreamResponse:
            body = json.loads(await request.read())
            again = "kv_transfer_params" in body
            self.running += 1
            try:
                for _ in range(TOKENS):
                    await asyncio.sleep(STEP * (1 + EACH * (self.running - 1)))
            finally:
                self.running -= 1
            self.siblings += again
            return await super().chat(request)

        def add_more(self, app: web.Application) -> None:
            app.router.add_get("/metrics", self.metrics)

        async def metrics(self, _: web.Request) -> web.Response:
            from aiohttp import web

            text = (
                f'vllm:num_requests_running{{engine="0"}} {self.running}\nvllm:num_requests_waiting{{engine="0"}} 0\n'
            )
            return web.Response(text=text)

    return SteppingEngine()


async def calls_of(url: str, seconds: float, seed: int) -> list[float]:
    """Seconds of each call of four agents: runs of six calls, then a pause of up to six seconds."""
    import httpx

    found: list[float] = []
    until = time.monotonic() + seconds

    async def agent(number: int) -> None:
        coin = random.Random(seed * 100 + number)
        async with httpx.AsyncClient(timeout=60) as http:
            while time.monotonic() < until:
                for turn in range(6):
                    body = {
                        "model": "tiny",
                        "messages": [{"role": "user", "content": f"{number} {turn}"}],
                        "temperature": 0,
                    }
                    began = time.perf_counter()
                    (await http.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()
                    found.append(time.perf_counter() - began)
                await asyncio.sleep(coin.uniform(0.0, 6.0))

    await asyncio.gather(*(agent(n) for n in range(4)))
    return found


def latency(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """With siblings and without, in turns, so that what else the machine does meets both."""
    import httpx
    import numpy as np
    from tests.support import free_port, process, wait_for
    from tests.support.served import Served

    found: dict[bool, list[float]] = {False: [], True: []}
    made = 0
    for part, on in itertools.product(range(args.parts), (False, True)):
        engine = stepping_engine()
        app = asyncio.run(app_of(engine))
        where = folder / f"latency-{part}-{on}"
        where.mkdir(parents=True)
        port = free_port()
        with Served(app) as engine_url:
            command = [
                str(Path(sys.executable).with_name("slipstream")),
                "proxy",
                "--engine",
                engine_url,
                "--port",
                str(port),
            ]
            sets = ["engine.name=tiny", f"data_dir={where}/data", "judge.function='steps:score'", "engine.kind='vllm'"]
            route = "{ explore = 'siblings', explore_share = 1.0, explore_samples = 4 }"
            sets += [f"models={{ tiny = {route} }}"] if on else []
            command += [x for s in sets for x in ("--set", s)]
            with process(command, where / "proxy.log"):
                url = f"http://127.0.0.1:{port}"
                wait_for(functools.partial(httpx.get, f"{url}/readyz"), 60)
                found[on] += asyncio.run(calls_of(url, args.seconds, part))
        made += engine.siblings
        say(f"part {part}, siblings {'on' if on else 'off'}: {len(found[on])} calls so far, {made} siblings")
    figures: dict[str, Any] = {"siblings": made}
    for on, name in ((False, "off"), (True, "on")):
        p50, p99 = (float(x) for x in np.percentile(found[on], (50, 99)))
        figures |= {
            f"calls_{name}": len(found[on]),
            f"p50_ms_{name}": round(1e3 * p50, 2),
            f"p99_ms_{name}": round(1e3 * p99, 2),
        }
    figures["p50_ratio"] = round(figures["p50_ms_on"] / figures["p50_ms_off"], 4)
    figures["p99_ratio"] = round(figures["p99_ms_on"] / figures["p99_ms_off"], 4)
    return figures


async def app_of(engine: Any) -> Any:
    from aiohttp import web

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_get("/v1/models", engine.list_models)
    app.router.add_get("/health", engine.health)
    engine.add_more(app)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1200, help="of the agent, in each arm")
    parser.add_argument("--samples", type=int, default=4, help="siblings of a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("grouped", "siblings", "latency"))
    parser.add_argument("--parts", type=int, default=3, help="of the latency, each with siblings and without")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a part")
    parser.add_argument("--folder", type=Path, help="where logs and stores stay; default: a temporary folder")
    args = parser.parse_args()
    result: dict[str, Any] = {"seed": args.seed}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        for name, greedy in (("grouped", False), ("siblings", True)):
            if args.only in (None, name):
                result |= {f"{k}_{name}": v for k, v in arm(folder / name, args, greedy=greedy).items()}
        if args.only in (None, "latency"):
            result["latency"] = latency(folder, args)
    if args.only is None:
        result["gain_share"] = round(result["gain_siblings"] / result["gain_grouped"], 3)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
