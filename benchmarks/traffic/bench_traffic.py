"""What traffic teaches that no reward accompanied, as a share of what the same agent learns with grouped and rewarded runs.

    python benchmarks/traffic/bench_traffic.py [--only ARM] [--seed 0] [--calls 1600] [--out FILE]
    python benchmarks/traffic/bench_traffic.py --task TASKS.json --which products --model FOLDER --only ARM --out FILE
    python benchmarks/traffic/bench_traffic.py --merge FILES…

Real vLLM, proxy, judge and trainer at their defaults, from an empty data folder. Each arm is a function here. All but second_life have the same number of agent calls, in
rounds: after each the agent pauses until nothing waits that can be learned from. Held-out tasks are measured at temperature 1, before and after.

`rewarded`: temperature 1, eight runs of a task with its tag, rewards posted. `top_p`: the same with top_p 0.9.
`greedy_siblings`: temperature 0, no tag, no reward. A function judges siblings of each step. `last_own` is held-out success at temperature 0.
`feedback_words`: nobody posts a reward. A scripted user says what was wrong with the first wrong reply of a run, and what was wanted.
`feedback_wrong`: a fifth of these users name something else. `feedback_attack`: each gives an order about the run's first reply.
`next_turn`: the user says it in the conversation, as the next turn. A scripted judge finds it (a model's part, by a rule).
`second_life`: the base model makes --episodes runs while training is paused, and a rubric that is wrong (short runs are good) scores them. Then `slipstream judge rerun`
scores them with the right one, and `slipstream train --from-store` trains on them.
`night`: engine and trainer take turns on one machine, and `trainer.schedule` is open every other minute. The agent works while it is closed.
`latency`: what the agent feels of siblings (latency.py), before a stand-in for an engine.

An arm ends within --time-limit seconds with what it has. The last line is JSON, merged into benchmarks/results/traffic.json, or with --out into FILE alone. `share` is an arm's mean
gain over `rewarded`'s, over the seeds that both have.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = [ROOT, ROOT / "examples", *(ROOT / p for p in ("sdk", "proxy", "judge", "trainer", "engine"))]
sys.path[:0] = [str(p) for p in PARTS]

import aiohttp
from aiohttp import web
from benchmarks.traffic import latency as felt
from benchmarks.traffic.talks import Inbox, Message, Questions, Talk, Task
from tests.support.ruled_judge import RuledJudge, each
from tests.support.served import Served

from slipstream.client import AsyncClient
from slipstream.config import Config, load_config
from slipstream.contract import FeedbackIn, Group, Status, TrainAgainIn
from slipstream.errors import ApiError
from slipstream.operate.demo.learning import settle
from slipstream.operate.demo.task import load_task
from slipstream.operate.run.stack import Stack, start_stack
from slipstream.shared.processes.supervisor import Supervisor
from slipstream_judge.run.rerun import rerun

RESULTS = ROOT / "benchmarks" / "results" / "traffic.json"
LANES, GROUP = 32, 8
"""Runs at once; runs of a task."""
ROUND = 128
"""Calls of the agent between two pauses."""
HELD_OUT = 256
PAUSE = 60.0
"""Longest pause, in seconds."""
SIGNAL = 5.0
"""Seconds without a step or a lease after which a trainer with groups waits for more of them."""
END = 25.0
"""Seconds that the end of an arm takes beside held-out runs."""
WRONG = "benchmarks.traffic.bench_traffic:short_is_good"


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def short_is_good(group: Group) -> dict[str, float]:
    """A rubric that somebody regrets."""
    return {e.episode.id: -float(sum(len(str(call.reply)) for call in e.calls)) for e in group.episodes}


@dataclass(slots=True)
class Arm:
    """One run of one arm."""

    task: Task
    folder: Path
    args: argparse.Namespace
    began: float = field(default_factory=time.monotonic)
    tail: float = END
    """Seconds that its end will take."""

    @property
    def left(self) -> float:
        """Seconds for more traffic or training."""
        return self.began + self.args.time_limit - self.tail - time.monotonic()

    @asynccontextmanager
    async def stack(self, *settings: str) -> AsyncIterator[Stack]:
        args, task = self.args, self.task
        self.folder.mkdir(parents=True, exist_ok=True)
        engine = {"model": str(task.model), "name": task.name}
        base = {"data_dir": str(self.folder), "engine": engine, "proxy": {"port": 0}, "trainer": {"seed": args.seed}}
        config = load_config(None, base=base, flags=[*task.settings, *settings, *args.set])
        with (self.folder / "stack.log").open("w", buffering=1) as log:
            supervisor = Supervisor(lambda name, line: print(f"{name:8} | {line}", file=log))
            supervisor.handle_signals()
            try:
                stack = await start_stack(config, supervisor, say)
                if supervisor.stopping.is_set():
                    raise SystemExit("it was told to end")
                say(f"ready after {time.monotonic() - self.began:.0f} s, log in {self.folder / 'stack.log'}")
                yield stack
            finally:
                await supervisor.stop()


# --- who talks


@dataclass(slots=True)
class User:
    """Says what was wrong with the first wrong reply of a run.

    ``wrong``: in this share of the cases the user is mistaken. ``attacks``: gives an order about the first reply instead.
    ``next_turn``: says it in the conversation, and nowhere else.
    """

    seed: int
    wrong: float = 0.0
    attacks: bool = False
    next_turn: bool = False
    said: int = 0
    coin: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.coin = random.Random(self.seed)

    def hears(self, task: Task, talk: Talk, message: Message) -> str | None:
        mistaken = self.coin if self.coin.random() < self.wrong else None
        words = task.attack if self.attacks else talk.correction(message, mistaken)
        self.said += words is not None
        return words


@dataclass(slots=True)
class Agents:
    """The agent's runs against a proxy."""

    task: Task
    url: str
    seed: int
    temperature: float = 1.0
    top_p: float | None = None
    tagged: bool = True
    posts: bool = True
    user: User | None = None
    calls: int = 0
    runs: int = 0
    failed: int = 0
    refused: int = 0
    """Calls that were answered with another status than 200."""

    def __post_init__(self) -> None:
        self._todo = self._train()

    _todo: Iterator[Talk] = field(init=False)

    def _train(self) -> Iterator[Talk]:
        for talk in self.task.talks("train", self.seed):
            yield talk
            for _ in range(GROUP - 1 if self.tagged else 0):
                yield self.task.again(talk)

    async def run(self, http: aiohttp.ClientSession, talk: Talk, split: str, temperature: float) -> float:
        """One run. → Its reward."""
        episode, training, said = f"{talk.id}-{uuid.uuid4().hex[:12]}", split == "train", None
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": talk.id, "x-slipstream-split": split}
        tags = tags if self.tagged or not training else {}
        while not talk.done:
            body: dict[str, Any] = {"model": self.task.name, "messages": talk.messages, "temperature": temperature}
            body |= {"max_tokens": talk.max_tokens} | ({"tools": talk.tools} if talk.tools else {})
            body |= {"top_p": self.top_p} if self.top_p and training else {}
            message, call = await self._ask(http, body, tags)
            self.calls += training
            hears = self.user is not None and training and said is None
            words = self.user.hears(self.task, talk, message) if hears and self.user else None
            if words is not None:
                said = FeedbackIn(text=words, call=call)
            if words is not None and self.user and self.user.next_turn:
                talk.interrupt(message, words)
            else:
                talk.act(message)
        if tags:
            value = {"name": "reward", "value": talk.reward, "source": "agent"}
            if self.posts and training:
                await self._post(http, f"{episode}/rewards", value)
            await self._post(http, f"{episode}/done", {})
        if said is not None and self.user and not self.user.next_turn:
            await self._post(http, f"{episode}/feedback", said.model_dump(exclude_none=True))
        return talk.reward

    async def _ask(self, http: aiohttp.ClientSession, body: Any, tags: dict[str, str]) -> tuple[Message, str]:
        async with http.post("/v1/chat/completions", json=body, headers=tags) as reply:
            if reply.status != 200:
                self.refused += 1
                raise RuntimeError(f"{reply.status}: {(await reply.text())[:200]}")
            message = (await reply.json())["choices"][0]["message"]
            call = reply.headers.get("x-slipstream-call", "")
        kept = {"role": "assistant", "content": message.get("content")}
        return kept | ({"tool_calls": calls} if (calls := message.get("tool_calls")) else {}), call

    async def _post(self, http: aiohttp.ClientSession, path: str, body: Any) -> None:
        async with http.post(f"/slipstream/v1/episodes/{path}", json=body) as reply:
            reply.raise_for_status()

    async def _lanes(self, todo: Iterator[Talk], split: str, temperature: float, go: Callable[[], bool]) -> list[float]:
        rewards: list[float] = []

        async def lane(http: aiohttp.ClientSession) -> None:
            while go() and (talk := next(todo, None)) is not None:
                try:
                    rewards.append(await self.run(http, talk, split, temperature))
                except (aiohttp.ClientError, RuntimeError, TimeoutError, OSError) as error:
                    self.failed += 1
                    say(f"a run failed: {error!r}"[:300])
                    await asyncio.sleep(0.5)

        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            self.url, connector=connector, timeout=aiohttp.ClientTimeout(total=120)
        ) as http:
            await asyncio.gather(*(lane(http) for _ in range(LANES)))
        self.runs += len(rewards) if split == "train" else 0
        return rewards

    async def work(self, calls: float, left: Callable[[], float]) -> None:
        """Training runs until there were about so many calls more, or no time is left."""
        goal = self.calls + calls
        await self._lanes(self._todo, "train", self.temperature, lambda: self.calls < goal and left() > 0)

    async def held_out(self, temperature: float = 1.0) -> float:
        """Mean reward."""
        todo = itertools.islice(self.task.talks("eval", self.seed), HELD_OUT)
        rewards = await self._lanes(todo, "eval", temperature, lambda: True)
        return statistics.fmean(rewards) if rewards else float("nan")


async def quiet(
    client: AsyncClient, longest: float, *, judged: bool = False, scored: bool = False, last: bool = False
) -> None:
    """Until the trainer has learned from what there is, or so many seconds. ``judged``: a judge reads the runs. ``scored``: it
    gives all of them what they train by. ``last``: also what is too little for a step. Else a trainer that waits for
    more signal gets more calls."""
    until, looks, steps, moved = time.monotonic() + longest, 0, -1, 0.0
    while time.monotonic() < until and looks < 4:
        status = await status_of(client)
        groups = status.groups
        if status.steps != steps or groups.get("leased"):
            steps, moved = status.steps, time.monotonic()
        waits = any("until no agent's call" in line for line in status.waiting)
        waits = waits or bool(judged and status.judging.backlog.groups)
        waits = waits or bool(scored and groups.get("waiting_reward")) or bool(groups.get("leased"))
        if last or time.monotonic() < moved + SIGNAL:
            waits = waits or groups.get("ready", 0) >= (1 if last else 4)
        looks = 0 if waits else looks + 1
        await asyncio.sleep(0.5)


async def status_of(client: AsyncClient, patience: float = 60.0) -> Status:
    """A busy machine may keep the control plane from answering for a while."""
    until = time.monotonic() + patience
    while True:
        try:
            return await client.status()
        except ApiError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(1.0)


# --- arms


async def live(arm: Arm, agents: Agents, stack: Stack, **judge: bool) -> dict[str, Any]:
    """Rounds of traffic with pauses. → Figures."""
    began = time.monotonic()
    base = await agents.held_out()
    arm.tail = END + 1.5 * (time.monotonic() - began)
    say(f"held-out of the base model: {base:.3f}")
    began = time.monotonic()
    async with AsyncClient(stack.url, timeout=120.0) as client:
        while agents.calls < arm.args.calls and arm.left > 0:
            await agents.work(min(ROUND, arm.args.calls - agents.calls), lambda: arm.left)
            await quiet(client, min(PAUSE, arm.left), **judge)
            status = await status_of(client)
            say(f"{agents.calls} calls, {status.steps} steps, live {status.models}, groups {status.groups}")
        await quiet(client, min(1.5 * PAUSE, arm.left), **judge, last=True)
        seconds = time.monotonic() - began
        return await ended(arm, agents, stack, client, base, seconds)


async def ended(
    arm: Arm, agents: Agents, stack: Stack, client: AsyncClient, base: float, seconds: float
) -> dict[str, Any]:
    """The figures that all arms have."""
    status = await status_of(client)
    adapter = await settle(stack)
    events = await client.events()
    last = await agents.held_out()
    steps = [e.data for e in events if e.kind == "step"]
    say(f"held-out of {adapter}: {last:.3f}")
    found: dict[str, Any] = {"base": round(base, 4), "last": round(last, 4), "gain": round(last - base, 4)}
    found |= {"calls": agents.calls, "runs": agents.runs, "steps": len(steps), "seconds": round(seconds, 1)}
    found |= {"whole": arm.left > 0, "failed": agents.failed, "adapter": adapter, "groups": status.groups}
    skipped = [str(e.data.get("reason")) for e in events if e.kind in ("skipped", "undone")]
    found |= {"skipped": len(skipped), "skipped_why": sorted(set(skipped))[:5]}
    if agents.user is not None:
        refused = sum(int(str(d.get("words_refused", 0))) for d in (e.data for e in events))
        found |= {
            "said": agents.user.said,
            "taught": sum(int(str(d.get("words", 0))) for d in steps),
            "refused": refused,
        }
    return found | ({"siblings": status.siblings} if status.siblings else {})


async def rewarded(arm: Arm) -> dict[str, Any]:
    async with arm.stack() as stack:
        return await live(arm, Agents(arm.task, stack.url, arm.args.seed), stack)


async def top_p(arm: Arm) -> dict[str, Any]:
    async with arm.stack() as stack:
        return await live(arm, Agents(arm.task, stack.url, arm.args.seed, top_p=0.9), stack)


async def greedy_siblings(arm: Arm) -> dict[str, Any]:
    route = "{ explore = 'siblings', explore_share = 1.0, explore_samples = 4, explore_tokens = 100000000 }"
    settings = f"judge.function={arm.task.judge!r}", f"models={{ {arm.task.name} = {route} }}"
    async with arm.stack(*settings) as stack:
        agents = Agents(arm.task, stack.url, arm.args.seed, temperature=0.0, tagged=False, posts=False)
        found = await live(arm, agents, stack, judged=True, scored=True)
        return found | {"last_own": round(await agents.held_out(0.0), 4)}


async def words(arm: Arm, **how: Any) -> dict[str, Any]:
    async with arm.stack() as stack:
        user = User(arm.args.seed, **how)
        return await live(arm, Agents(arm.task, stack.url, arm.args.seed, posts=False, user=user), stack)


async def feedback_wrong(arm: Arm) -> dict[str, Any]:
    return await words(arm, wrong=0.2)


async def feedback_attack(arm: Arm) -> dict[str, Any]:
    return await words(arm, attacks=True)


def listener() -> web.Application:
    """A judge's model that finds corrections, and finds all runs equally good."""
    ruled = RuledJudge(each(lambda _: 0.0))

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        try:
            turn = str(json.loads(body["messages"][-1]["content"])["next"])
        except (ValueError, KeyError, TypeError):
            return await ruled.chat(request)
        corrects = re.match(r"(search for|read mail|answer|Only the result|It is)\b", turn) is not None
        said = json.dumps({"corrects": corrects, "words": turn if corrects else ""})
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [choice], "usage": usage})

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/{path:.*}", ruled.tell)
    return app


async def next_turn(arm: Arm) -> dict[str, Any]:
    with Served(listener()) as url:
        judge = "judge.model='openai/ruled'", f"judge.api_base='{url}/v1'", "judge.votes=1"
        async with arm.stack(*judge, f"models={{ {arm.task.name} = {{ feedback = 'next_turn' }} }}") as stack:
            user = User(arm.args.seed, next_turn=True)
            agents = Agents(arm.task, stack.url, arm.args.seed, posts=False, user=user)
            return await live(arm, agents, stack, judged=True)


async def second_life(arm: Arm) -> dict[str, Any]:
    async with arm.stack("reward.weights={ judge = 1.0 }") as stack:
        agents, args = Agents(arm.task, stack.url, arm.args.seed, posts=False), arm.args
        began = time.monotonic()
        base = await agents.held_out()
        arm.tail = END + 1.5 * (time.monotonic() - began)
        demo = load_task("inbox")
        ruled = RuledJudge(each(demo.rule))
        async with AsyncClient(stack.url, timeout=120.0) as client:
            await client.pause_training("to gather a record first")
            gathering = arm.left / 2
            enough = time.monotonic() + gathering
            while agents.runs < args.episodes and time.monotonic() < enough:
                await agents.work(4 * min(ROUND, args.episodes - agents.runs), lambda: enough - time.monotonic())
            say(f"{agents.runs} runs in {time.monotonic() - began:.0f} s")
            first = await judge_again(client, function=WRONG)
            with Served(ruled.app()) as url:
                model = {"model": "openai/ruled", "api_base": f"{url}/v1", "rubric": demo.rubric, "votes": 1}
                judge = {"function": arm.task.judge} if args.task else model
                second = await judge_again(client, **judge)
            plan = await client.train_again(TrainAgainIn(epochs=args.epochs))
            say(f"stored: {first}; judged again: {second}; to train on: {plan}")
            began = time.monotonic()
            await client.resume_training()
            while (passes := await passes_left(client)) and arm.left > 0:
                await asyncio.sleep(2.0)
            found = await ended(arm, agents, stack, client, base, time.monotonic() - began)
    more = {"episodes": agents.runs, "epochs": args.epochs, "passes": plan.passes, "passes_left": passes}
    return found | more | {"left_out": plan.left_out}


async def judge_again(client: AsyncClient, **judge: object) -> dict[str, object]:
    """``slipstream judge rerun``."""
    return await rerun(Config.model_validate({"judge": judge}), client, 0.0, filters={"split": "train"})


async def passes_left(client: AsyncClient) -> int:
    """Of groups that are to be trained on again."""
    lines = (await status_of(client)).funnel.lines
    return sum(line.count for line in lines if line.cause == "again")


async def night(arm: Arm) -> dict[str, Any]:
    """A day and a night are a minute each."""
    now = time.time()
    begins = [time.localtime(now - now % 60 + 60 * n) for n in range(2, 2 + int(arm.args.time_limit / 60), 2)]
    hours = ",".join(f"{time.strftime('%H:%M', b)}-{time.strftime('%H:%M', _later(b))}" for b in begins)
    async with arm.stack(f"trainer.schedule='{hours}'", "engine.share=true") as stack:
        agents = Agents(arm.task, stack.url, arm.args.seed)
        began = time.monotonic()
        base = await agents.held_out()
        arm.tail = END + 1.5 * (time.monotonic() - began)
        schedule, days, delayed = stack.config.trainer.schedule, 0, 0.0
        async with AsyncClient(stack.url, timeout=120.0) as client:
            while agents.calls < arm.args.calls and arm.left > 0:
                before = await held(stack.url)
                days += 1

                def day() -> float:
                    at = time.time()
                    return schedule.opens(at) - at - 1.0  # a run that has begun is ended

                wanted = min(arm.args.calls - agents.calls, arm.args.calls / 2)
                await agents.work(wanted, lambda: min(arm.left, day()))
                delayed += await held(stack.url) - before
                say(f"day {days}: {agents.calls} calls, {delayed:g} delayed")
                while arm.left > 0 and schedule.opens(time.time()) > time.time():
                    await asyncio.sleep(0.5)
                while arm.left > 0 and schedule.opens(time.time()) <= time.time():
                    await asyncio.sleep(0.5)
            events = [e for e in await client.events() if e.kind == "step"]
            found = await ended(arm, agents, stack, client, base, time.monotonic() - began)
    by_day = sum(schedule.opens(e.at) > e.at for e in events)
    return found | {"days": days, "delayed_by_day": delayed, "steps_by_day": by_day}


def _later(at: time.struct_time) -> time.struct_time:
    return time.localtime(time.mktime(at) + 60)


async def held(url: str) -> float:
    """Calls that waited for the trainer so far."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("slipstream_held_calls_total"))


async def latency(arm: Arm) -> dict[str, Any]:
    return await asyncio.to_thread(felt.measure, arm.folder, arm.args.seed, lambda: arm.left)


ARMS: dict[str, Callable[[Arm], Awaitable[dict[str, Any]]]] = {
    "rewarded": rewarded,
    "greedy_siblings": greedy_siblings,
    "top_p": top_p,
    "feedback_words": words,
    "feedback_wrong": feedback_wrong,
    "feedback_attack": feedback_attack,
    "next_turn": next_turn,
    "second_life": second_life,
    "night": night,
    "latency": latency,
}
"""What learns from a teacher's calls (`slipstream distill`) has its place here as well."""
OF_QUESTIONS = (
    "rewarded",
    "greedy_siblings",
    "top_p",
    "feedback_words",
    "feedback_wrong",
    "feedback_attack",
    "next_turn",
)


# --- results


def merged(whole: dict[str, Any], parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Task → arm → figures by seed, their means, and the share of the rewarded arm's gain."""
    for part in parts:
        for task, arms in part.items():
            for name, found in arms.items():
                whole.setdefault(task, {}).setdefault(name, {}).setdefault("seeds", {}).update(found["seeds"])
    for arms in whole.values():
        gains = {name: {s: f["gain"] for s, f in a["seeds"].items() if "gain" in f} for name, a in arms.items()}
        for name, gained in gains.items():
            both = gained.keys() & gains.get("rewarded", {}).keys()
            most = sum(gains["rewarded"][s] for s in both)
            if gained:
                arms[name]["gain"] = round(statistics.fmean(gained.values()), 4)
            if most > 0:
                arms[name]["share"] = round(sum(gained[s] for s in both) / most, 3)
    return whole


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


async def limited(arm: Arm, name: str) -> dict[str, Any]:
    """An arm's figures, or what went wrong."""
    try:
        return await asyncio.wait_for(ARMS[name](arm), arm.args.time_limit + 2 * END)
    except Exception as error:
        say(f"{name} failed: {error!r}")
        return {"problem": repr(error)[:500]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(ARMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=1600, help="of the agent, in each arm")
    parser.add_argument("--episodes", type=int, default=2000, help="that second_life stores")
    parser.add_argument("--epochs", type=int, default=3, help="of second_life")
    parser.add_argument("--time-limit", type=float, default=1800.0, help="seconds of an arm, its start included")
    parser.add_argument("--task", type=Path, help="JSON of benchmarks/peers/tasks.py, in place of the inbox")
    parser.add_argument("--which", default="products", help="of its tasks")
    parser.add_argument("--model", type=Path, help="folder of the pretrained model that works on --task")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="of the stack")
    parser.add_argument("--folder", type=Path, help="where data and logs stay; default: a temporary folder")
    parser.add_argument("--out", type=Path, help="the result's file, in place of the repository's")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="put these results together, and run nothing")
    return parser.parse_args()


def main() -> None:
    """Command line."""
    args = arguments()
    out: Path = args.out or RESULTS
    parts = [read(file) for file in args.merge]
    if not parts:
        os.environ.setdefault("OPENAI_API_KEY", "none")
        os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, PARTS), os.environ.get("PYTHONPATH", "")])
        os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        task: Task = Questions(f"{args.task.resolve()}:{args.which}", args.model.resolve()) if args.task else Inbox()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            folder = (args.folder or Path(temporary)).resolve()
            for name in [args.only] if args.only else OF_QUESTIONS if args.task else ARMS:
                arm = Arm(task, folder / f"{task.name}-{name}-{args.seed}", args)
                found = asyncio.run(limited(arm, name))
                found |= {"time": round(time.monotonic() - arm.began, 1), "machine": machine()}
                parts.append({task.name: {name: {"seeds": {str(args.seed): found}}}})
                out.write_text(json.dumps(merged(read(out), parts), indent=1) + "\n")
    whole = merged(read(out), parts)
    out.write_text(json.dumps(whole, indent=1) + "\n")
    print(json.dumps(whole if args.merge else merged({}, parts)), flush=True)


def machine() -> str:
    """What it ran on, and how busy that was."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return f"{os.cpu_count()} cores, {gpu}, load {os.getloadavg()[0]:.0f}"


if __name__ == "__main__":
    main()
