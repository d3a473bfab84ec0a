"""Replays of real versions on real vLLM, in parts that run side by side, and what the parts say together.

A part has an engine of its own, records runs of the accepted version, and replays other versions on samples of these
runs until its time is over. Each replay is judged twice over the same replies: by a user's function, and by RULER.
The judge's prompts, parsing and orders are the shipped ones. In place of its model stands a rule with noise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import contextvars
import functools
import itertools
import json
import random
import statistics
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from versions import KINDS, NOISE, TARGETS, VERSIONS, part_for, scaled, spoiled, train_lora
from worlds import WORLDS, Message, World

from slipstream.config import Config, load_config
from slipstream.contract import CallRecord, EpisodeDetail
from slipstream.operate.run.stack import start_engine
from slipstream.shared.machine import has_gpu
from slipstream.shared.processes.supervisor import Supervisor
from slipstream_judge.model.llm import Answer, Llm, Usage
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_replay.by_judge import SideBySide
from slipstream_replay.comparison import JUDGE_MEASURE, Questions, groups_of
from slipstream_replay.steps import ReplayBudget, ReplayCase, Replayer, Side, case_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.ruled_judge import understand

detect = functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False)
ALPHA, SAMPLES, TOGETHER = 0.01, 8, 25
"""Cases that are asked at once: a replay ends early after so many at the earliest."""
AT_ONCE = 3
"""Replays of a part at the same time."""
JOBS = {"equal": 200, "worse_10": 200, "spoiled": 200, "worse_5": 60, "worse_30": 60, "better": 60}
JOBS |= {"longer_winded_better": 60, "broken_on_one_tag": 60}
"""Replays of each version, of all parts together."""


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


# --- the engine


@dataclass
class Served:
    """vLLM with the adapters of a folder, each under its folder's name."""

    world: World
    base: str
    http: httpx.AsyncClient
    tokens: int = 0
    """Of prompts and replies of the runs that were played."""
    runs: int = 0

    async def chat(self, model: str, messages: list[Message], tools: list[Message]) -> tuple[Message, str]:
        body = {"model": model, "messages": messages, "tools": tools, **sampling(self.world)}
        answer = (await self._post(body)).raise_for_status().json()
        self.tokens += answer["usage"]["total_tokens"]
        choice = answer["choices"][0]
        message = {"role": "assistant", "content": choice["message"].get("content")}
        if calls := choice["message"].get("tool_calls"):
            kept = ("id", "type", "function")
            message["tool_calls"] = [{k: c[k] for k in kept} for c in calls]
        return message, str(choice.get("finish_reason"))

    async def _post(self, body: Message) -> httpx.Response:
        for _ in range(4):
            try:
                return await self.http.post(f"{self.base}/v1/chat/completions", json=body)
            except httpx.ReadError:  # so many connections at once that the engine's side dropped one
                await asyncio.sleep(1.0)
        return await self.http.post(f"{self.base}/v1/chat/completions", json=body)

    async def play(self, model: str, item: Any) -> EpisodeDetail:
        """A run, recorded as the proxy records it."""
        calls: list[CallRecord] = []
        name = uuid.uuid4().hex

        async def ask(messages: list[Message], tools: list[Message]) -> Message:
            message, finish = await self.chat(model, messages, tools)
            calls.append(
                CallRecord(
                    id=f"{name}-{len(calls)}", episode=name, number=len(calls), at=time.time(), seconds=0.0,
                    dialect="chat", model=self.world.name, adapter=model, status=200, outcome="ok", trainable=True,
                    messages=list(messages), tools=tools, reply=[message], finish_reason=finish,
                    sampling=sampling(self.world),
                )
            )  # fmt: skip
            return message

        reward = await self.world.play(ask, item)
        self.runs += 1
        return EpisodeDetail(
            id=name, key="-", task=None, split="train", model=self.world.name, adapter=model, state="done",
            started=0.0, ended=1.0, calls=len(calls), call_list=calls, reward=reward,
            tags={"customer": str(self.world.tag(item))},
        )  # fmt: skip

    async def load(self, adapter: Path) -> None:
        body = {"lora_name": adapter.name, "lora_path": str(adapter)}
        (await self.http.post(f"{self.base}/v1/load_lora_adapter", json=body)).raise_for_status()

    async def played(self, model: str, items: Iterator[Any], count: int, concurrency: int = 48) -> list[EpisodeDetail]:
        left, found = itertools.islice(items, count), list[EpisodeDetail]()

        async def work() -> None:
            for item in left:
                found.append(await self.play(model, item))

        await asyncio.gather(*(work() for _ in range(concurrency)))
        return found

    async def held_out(self, model: str, count: int, seed: int) -> list[tuple[str, float]]:
        """The tag's value and the reward of each run."""
        played = await self.played(model, self.world.items("eval", seed), count)
        return [(e.tags["customer"], e.reward or 0.0) for e in played]

    async def success(self, model: str, count: int) -> float:
        return statistics.fmean(reward for _, reward in await self.held_out(model, count, 1))


def sampling(world: World) -> dict[str, Any]:
    return {"temperature": 1.0, "max_tokens": world.max_tokens}


@contextlib.asynccontextmanager
async def served(world: World, adapters: Sequence[Path], log: Path, flags: list[str]) -> AsyncIterator[Served]:
    names = [f"{p.name}={p}" for p in adapters]
    base = {"engine": {"model": str(world.model), "name": world.name, "max_loras": 10, "api_servers": 1}}
    config: Config = load_config(env={}, base=base, flags=flags)
    args = [*config.engine.args, *(["--lora-modules", *names] if names else [])]
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"args": args})})
    with log.open("w", buffering=1) as out:
        supervisor = Supervisor(lambda who, line: print(f"{who:8} | {line}", file=out))
        try:
            _, url = await start_engine(config, supervisor, say)
            # vLLM closes a connection that was idle for 5 s, so these are closed before
            limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
            async with httpx.AsyncClient(timeout=300.0, limits=limits, trust_env=False) as http:
                yield Served(world, url, http)
        finally:
            await supervisor.stop()


# --- the adapters


async def make(world: World, folder: Path, args: argparse.Namespace) -> None:
    """Train, and find the parts of the way that succeed as often as they should."""
    folder.mkdir(parents=True, exist_ok=True)
    device = "cuda" if has_gpu() else "cpu"
    for kind in KINDS:
        if not (folder / "trained" / kind).is_dir():
            began = time.monotonic()
            train_lora(world, kind, folder / "trained" / kind, device, args.train_steps)
            say(f"{world.name}: {kind} trained in {time.monotonic() - began:.0f} s")
    found: dict[str, dict[float, float]] = {kind: {} for kind in KINDS}
    async with served(world, [], folder / "grid.log", args.set) as engine:

        async def measure(kind: str, part: float) -> None:
            at = folder / "grid" / f"{kind}-{part:.4f}"
            scaled(folder / "trained" / kind, at, part)
            await engine.load(at)
            found[kind][part] = await engine.success(at.name, args.tries)
            say(f"{world.name}: {kind} at {part:g}: {found[kind][part]:.3f}")

        base = await engine.success(world.name, args.tries)
        for kind in KINDS:
            found[kind][0.0] = base
            for n in range(1, args.grid + 1):
                await measure(kind, n / args.grid)
        accepted = min(world.base, max(found["careful"].values()) - 0.08)
        for _ in range(args.rounds_of_parts):
            for kind, more in TARGETS.values():
                part = part_for(accepted + more, found[kind])
                if part not in found[kind]:
                    await measure(kind, part)
    parts = {"base model": base, "accepted": accepted}
    for name, (kind, more) in TARGETS.items():
        parts[name] = part_for(accepted + more, found[kind])
        scaled(folder / "trained" / kind, folder / "versions" / name, parts[name])
    scaled(folder / "trained" / "broken", folder / "versions" / "broken_on_one_tag", 1.0)
    scaled(folder / "trained" / "careful", folder / "versions" / "equal", parts["control"])
    spoiled(folder / "trained" / "careful", folder / "versions" / "spoiled", NOISE, 3)
    (folder / "made.json").write_text(json.dumps({"parts": parts, "measured": found}))
    say(json.dumps(parts))


# --- RULER

CALL: contextvars.ContextVar[tuple[World, CallRecord]] = contextvars.ContextVar("CALL")
RIGHT, WRONG, NOISE_OF_VOTE, PLACE = 0.8, 0.3, 0.2, 0.2


class RuledLlm(Llm):
    """In place of the judge's model: it reads the shipped prompt, and favours what it reads first."""

    async def ask(self, messages: list[dict[str, str]], schema: dict[str, Any], deadline: float) -> Answer:
        read = understand(messages)
        world, call = CALL.get()
        last = max(1, len(read.runs) - 1)
        scores = []
        for place, (name, text) in enumerate(read.runs.items()):
            good = RIGHT if world.step(call, said_in(text)) == 1 else WRONG
            score = good + PLACE * (1 - place / last) + random.gauss(0.0, NOISE_OF_VOTE)
            scores.append({"id": name, "reason": "ruled", "score": min(1.0, max(0.0, score))})
        return Answer(json.dumps({"scores": scores}), None, "stop", Usage(calls=1))


def said_in(text: str) -> Message:
    """The message that a judge reads."""
    from common.transcript import calls, said

    found = [{"function": {"name": c.name, "arguments": json.dumps(c.arguments)}} for c in calls(text)]
    return {"content": "\n".join(said(text)) if not found else None, "tool_calls": found}


class RuledJudge(SideBySide):
    def __init__(self, world: World) -> None:
        config = load_config(env={}, base={"judge": {"model": "openai/ruled", "concurrency": 64}})
        super().__init__(config.judge)
        assert self.panel.model is not None
        self.panel.model.ruler.llm.__class__ = RuledLlm
        self.world = world

    async def case(self, case: ReplayCase) -> None:
        for step in case.steps:
            CALL.set((self.world, step.call))
            await super().case(ReplayCase(case.episode, [step]))


# --- the replays


@dataclass
class Replayed:
    """How one replay went: cases of all rounds until "worse" (0: never), and the tokens that it took until then."""

    version: str
    cases: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)
    short: str | None = None


async def replay(engine: Served, version: str, cases: list[ReplayCase], judge: RuledJudge) -> Replayed:
    world, found = engine.world, Replayed(version)
    budget = ReplayBudget()
    sides = [Side(n, f"{engine.base}/v1", n) for n in (version, "control")]
    groups = [groups_of(c.episode.tags, c.episode.task) for c in cases]
    asked = {
        "function": Questions(detect, ALPHA, "step", world.step, groups=groups),
        "ruler": Questions(detect, ALPHA, JUDGE_MEASURE, groups=groups),
    }
    seen = missing = 0
    while True:
        for at in range(0, len(cases), TOGETHER):
            by_judge = judge.case if "ruler" not in found.cases else None
            replayer = Replayer(*sides, samples=SAMPLES, concurrency=TOGETHER, budget=budget, after=by_judge)
            some = [c.unasked() for c in cases[at : at + TOGETHER]]
            before, first = budget.spent, seen
            for case in await replayer.run(some):
                seen += 1
                if case.error:
                    missing += 1
                    say(f"{version}: {case.error}"[:300])
                    continue
                for name, questions in asked.items():
                    if name not in found.cases:
                        questions.see(case)
                        if questions.worse:
                            found.cases[name] = seen
                            share = (seen - first) / len(some)
                            found.tokens[name] = before + share * (budget.spent - before)
            if len(found.cases) == len(asked):
                break
        going = [name for name in asked if name not in found.cases and asked[name].leans]
        for name, questions in asked.items():
            if name in going:
                questions.again()
            elif name not in found.cases:
                found.cases[name], found.tokens[name] = 0, float(budget.spent)
        if not going:
            break
    found.short = asked["function"].short(missing) if not all(found.cases.values()) else None
    return found


def jobs(share: int, of: int) -> list[str]:
    """The versions that this part replays, mixed: a part that is short of time leaves out some of each."""
    listed = [name for name, count in JOBS.items() for _ in range(count)]
    random.Random(0).shuffle(listed)
    return listed[share - 1 :: of]


async def part(world: World, folder: Path, share: int, of: int, args: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    adapters = [folder / "versions" / name for name in ("control", *VERSIONS)]
    log = args.out.with_suffix(".log") if args.out else folder / f"part-{share}.log"
    async with served(world, adapters, log, args.set) as engine:
        say(f"{world.name} {share}/{of}: the engine answers after {time.monotonic() - began:.0f} s")
        held_out = {n: await engine.held_out(n, args.held_out, 1000 + share) for n in ("control", *VERSIONS)}
        engine.tokens = engine.runs = 0
        kept = await engine.played("control", world.items("train", 1000 + share), 3 * args.cases)
        tokens = engine.tokens / engine.runs
        say(f"{world.name} {share}/{of}: {len(kept)} runs are recorded after {time.monotonic() - began:.0f} s")
        judge, rng = RuledJudge(world), random.Random(share)
        mine = jobs(share, of) if args.each is None else [name for _ in range(args.each) for name in VERSIONS]
        left, found = iter(mine), list[Replayed]()

        async def work() -> None:
            for version in left:
                if time.monotonic() - began > args.seconds:
                    return
                cases = [case_of(e) for e in rng.sample(kept, args.cases)]
                found.append(await replay(engine, version, [c for c in cases if c.steps], judge))
                say(f"{world.name} {share}/{of}: {found[-1]}")

        workers = asyncio.gather(*(work() for _ in range(AT_ONCE)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(workers, args.seconds + args.grace - (time.monotonic() - began))
    return {
        "task": world.name, "part": [share, of], "cases": args.cases, "samples": SAMPLES, "gpu": has_gpu(),
        "held_out": held_out, "tokens_of_a_run": tokens, "replays": [vars(r) for r in found],
        "seconds": round(time.monotonic() - began, 1), "made": json.loads((folder / "made.json").read_text())["parts"],
    }  # fmt: skip


# --- together


def merged(parts: Sequence[dict[str, Any]], live: Any) -> dict[str, Any]:
    """What the parts of all tasks say. ``live(base, worse)``: episodes until the gate takes a worse version back."""
    found = {}
    for task in sorted({p["task"] for p in parts}):
        found[task] = _of_task([p for p in parts if p["task"] == task], live)
    rows = [row["versions"] for row in found.values()]

    def worst(version: str, how: str, best: Any) -> float:
        return float(best(row[version][f"refused_{how}"] or 0.0 for row in rows))

    goals = {
        "replay_right_function": worst("worse_10", "function", min),
        "replay_right_ruler": worst("worse_10", "ruler", min),
        "spoiled_passed": sum(r["spoiled"]["replays"] - r["spoiled"]["refusals"][h] for r in rows for h in HOW),
        "spoiled_replays": sum(r["spoiled"]["replays"] for r in rows),
        "equal_refused": max(worst("equal", how, max) for how in HOW),
        "tokens_vs_canary": max(r["tokens_vs_canary"] for r in found.values()),
    }
    holds = (
        goals["replay_right_function"] >= 0.95
        and goals["replay_right_ruler"] >= 0.9
        and not goals["spoiled_passed"]
        and goals["equal_refused"] <= 0.01
    )
    return {**goals, "holds": holds, "tasks": found}


HOW = ("function", "ruler")


def _of_task(parts: Sequence[dict[str, Any]], live: Any) -> dict[str, Any]:
    held_out: dict[str, list[float]] = defaultdict(list)
    of_tags: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    replays: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for p in parts:
        for name, rewards in p["held_out"].items():
            held_out[name] += [reward for _, reward in rewards]
            for tag, reward in rewards:
                of_tags[name][tag].append(reward)
        for one in p["replays"]:
            replays[one["version"]].append(one)
    base = statistics.fmean(held_out["control"])
    rows = {}
    for name in VERSIONS:
        runs = replays[name]
        p = statistics.fmean(held_out[name])
        error = ((p * (1 - p) + base * (1 - base)) / len(held_out[name])) ** 0.5
        refusals = {how: sum(r["cases"][how] > 0 for r in runs) for how in HOW}
        rows[name] = {
            "held_out_difference": round(p - base, 4),
            "standard_error": round(error, 4),
            "replays": len(runs),
            "without_verdict": sum(r["short"] is not None for r in runs),
            "refusals": refusals,
            **{f"refused_{how}": round(n / len(runs), 4) if runs else None for how, n in refusals.items()},
            **{f"cases_{how}": _mean([r["cases"][how] for r in runs if r["cases"][how]]) for how in HOW},
        }
    means = {n: {tag: statistics.fmean(found) for tag, found in sorted(of_tags[n].items())} for n in of_tags}
    rows["broken_on_one_tag"]["held_out_difference_of_tags"] = {
        tag: round(mean - means["control"].get(tag, 0.0), 3) for tag, mean in means["broken_on_one_tag"].items()
    }
    bad = [r["tokens"]["function"] for r in replays["worse_10"]]
    episodes = live(base, base + rows["worse_10"]["held_out_difference"])
    of_run = statistics.fmean(p["tokens_of_a_run"] for p in parts)
    return {
        "accepted": round(base, 4),
        "held_out_runs": len(held_out["control"]),
        "parts": len(parts),
        "cases": parts[0]["cases"],
        "samples": SAMPLES,
        "gpu": parts[0]["gpu"],
        "made": parts[0]["made"],
        "versions": rows,
        "tokens_of_a_run": round(of_run, 1),
        "tokens_until_refused_worse_10": _mean(bad),
        "live_episodes_of_the_gate": round(episodes, 1),
        "tokens_vs_canary": round(statistics.fmean(bad) / (episodes * of_run), 3) if bad else 0.0,
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 1) if values else None


def run(args: argparse.Namespace) -> dict[str, Any]:
    """One task's adapters, or one part."""
    world = WORLDS[args.task]
    folder = (args.data_dir / world.name).resolve()
    if args.make:
        asyncio.run(make(world, folder, args))
        return {"made": str(folder)}
    share, of = map(int, args.part.split("/"))
    return asyncio.run(part(world, folder, share, of, args))
