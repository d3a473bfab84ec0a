"""Does a replay find worse versions, and leave the others alone? ``python benchmarks/replay/bench_replay.py``.

Statistics at 200 cases come from the shipped test on made-up replies (seconds of CPU). ``--real`` adds real vLLM: the
inbox model and adapters whose held-out success is measured, each replayed by the running proxy while agents work. Noise
in the adapters' weights makes them worse. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import math
import random
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from slipstream.client import AsyncClient
from slipstream.contract import Adapter, AdapterIn, CallRecord, EpisodeDetail
from slipstream.operate.demo.driver import TaskDriver
from slipstream.operate.demo.progress import Progress
from slipstream.operate.demo.task import demo_config, load_task, open_agent
from slipstream.operate.run.stack import start_stack
from slipstream.replay.beside import MOST
from slipstream.replay.comparison import JUDGE, Questions
from slipstream.replay.steps import ReplayCase, ReplayStep
from slipstream.shared.processes.supervisor import Supervisor
from slipstream_proxy.control.gate.detector import BettingDetector

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gate"))
from bench_gate import success
from simulation import Simulation, World

# --- the statistics, with the shipped test

detect = functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False)
CASES, SAMPLES, STEPS, TAGS = 200, 8, 2, 5
ALPHA = 0.01
BASE = 0.7
WORLDS: dict[str, tuple[float, ...]] = {
    "equal": (0.0,) * TAGS,
    "better": (0.05,) * TAGS,
    "worse_5": (-0.05,) * TAGS,
    "worse_10": (-0.1,) * TAGS,
    "worse_30": (-0.3,) * TAGS,
    "spoiled": (-BASE,) * TAGS,
    "broken_on_one_tag": (0.05, 0.05, 0.05, 0.05, -BASE),
}
"""What the candidate's chance of a right step differs by, for each value of a tag."""
WINDED = 0.01
"""Of the longer-winded version's replies, which are better by 5 points, so many are cut off."""


@dataclass
class Verdicts:
    worse: int = 0
    runs: int = 0
    cases: list[int] = field(default_factory=list)
    """Cases until "worse"."""

    def note(self, cases: int) -> None:
        self.runs += 1
        self.worse += cases > 0
        self.cases += [cases] if cases else []

    @property
    def share(self) -> float:
        return self.worse / self.runs


EPISODES = [
    EpisodeDetail(
        id=f"e{tag}", key="-", task=None, split="train", model="m", adapter=None, state="done", started=0.0, ended=1.0,
        calls=STEPS, reward=1.0, tags={"customer": str(tag)},
    )
    for tag in range(TAGS)
]  # fmt: skip
CALLS = [
    CallRecord(
        id=f"c{n}", episode="e", number=n, at=0.0, seconds=0.0, dialect="chat", model="m", adapter=None, status=200,
        outcome="ok", trainable=True,
    )
    for n in range(STEPS)
]  # fmt: skip
REPLIES = [{"message": {"content": "x", "right": right}, "finish_reason": "stop"} for right in (0.0, 1.0)]
CUT = {"message": {"content": "x", "right": 1.0}, "finish_reason": "length"}


def refused(
    tags_C: np.ndarray, right: np.ndarray, judged: np.ndarray | None = None, cut: np.ndarray | None = None
) -> int:
    """Cases after which the candidate is refused; 0: it is not. ``right`` (2: sides, C: cases, T: steps, S: samples)."""
    by, score = (JUDGE, None) if judged is not None else ("right", lambda _, message: message["right"])
    questions = Questions(detect, ALPHA, by, score, groups=[[f"tag.customer={t}"] for t in tags_C])
    for n, tag in enumerate(tags_C):
        case = ReplayCase(EPISODES[tag], [ReplayStep(call) for call in CALLS])
        for t, step in enumerate(case.steps):
            step.candidate, step.control = [[REPLIES[int(x)] for x in right[side, n, t]] for side in (0, 1)]
            if cut is not None and cut[n, t]:
                step.candidate[0] = CUT
            if judged is not None:
                a, b = judged[:, n, t].tolist()
                step.judged = [(a[at : at + MOST], b[at : at + MOST]) for at in range(0, SAMPLES, MOST)]
        questions.see(case)
        if questions.worse:
            return n + 1
    return 0


def steps_of(rng: np.random.Generator, effect: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """→ (tags, right or wrong) as ``refused`` takes them. Cases differ in difficulty."""
    hard_C = rng.uniform(-0.25, 0.25, CASES)
    tags_C = rng.integers(0, TAGS, CASES)
    p_2C = np.clip(BASE + np.stack([hard_C + np.array(effect)[tags_C], hard_C]), 0.0, 1.0)
    return tags_C, rng.random((2, CASES, STEPS, SAMPLES)) < p_2C[:, :, None, None]


def ruler(rng: np.random.Generator, right: np.ndarray) -> np.ndarray:
    """A noisy judge's scores of four replies a side, seen together in both orders; it favours early places."""
    return np.concatenate([_judged(rng, right[..., at : at + MOST]) for at in range(0, SAMPLES, MOST)], axis=-1)


def _judged(rng: np.random.Generator, shown: np.ndarray) -> np.ndarray:
    sides, cases, steps, count = shown.shape
    places = rng.permuted(np.tile(np.arange(sides * count), (cases, steps, 1)), axis=-1)
    places = places.reshape(cases, steps, sides, count).transpose(2, 0, 1, 3)
    last = sides * count - 1
    votes = [
        np.clip(np.where(shown, 0.8, 0.3) + 0.2 * (1 - p / last) + rng.normal(0.0, 0.2, shown.shape), 0.0, 1.0)
        for p in (places, last - places)
    ]
    return np.mean(votes, axis=0)


def simulated(runs: int, seed: int) -> dict[str, dict[str, Verdicts]]:
    """World → by → verdicts."""
    rng = np.random.default_rng(seed)
    found: dict[str, dict[str, Verdicts]] = {}
    for name, effect in WORLDS.items():
        by = found[name] = {"function": Verdicts(), "ruler": Verdicts()}
        for _ in range(runs * (5 if name == "equal" else 1)):
            tags_C, right = steps_of(rng, effect)
            by["function"].note(refused(tags_C, right))
            by["ruler"].note(refused(tags_C, right, ruler(rng, right)))
    winded = found["longer_winded_better"] = {"function": Verdicts()}
    for _ in range(runs):
        tags_C, right = steps_of(rng, WORLDS["better"])
        winded["function"].note(refused(tags_C, right, cut=rng.random((CASES, STEPS)) < WINDED * SAMPLES))
    return found


def canary(runs: int) -> float:
    """Episodes that a version which is ten points worse answers until the gate takes it back, on the average."""
    world = World(BASE, (BASE - 0.1,), success, every=10**9, episodes=20_000)
    live = [Simulation(world, seed).play().bad_live for seed in range(runs)]
    return statistics.fmean(n if n is not None else world.episodes for n in live)


def summary(found: dict[str, dict[str, Verdicts]], live: float) -> dict[str, object]:
    refused = {f"{w}_{how}": round(v.share, 4) for w, by in found.items() for how, v in by.items()}
    spoiled = list(found["spoiled"].values())
    cases = statistics.fmean(found["worse_10"]["function"].cases)
    # a step of a live episode is one call; a replay's has both sides' samples. Prompts cost alike, each time.
    ratio = cases * STEPS * SAMPLES * 2 / (live * STEPS)
    return {
        "cases": CASES,
        "samples": SAMPLES,
        "runs": found["worse_10"]["function"].runs,
        "refused": refused,
        "replay_right_function": refused["worse_10_function"],
        "replay_right_ruler": refused["worse_10_ruler"],
        "spoiled_passed": sum(v.runs - v.worse for v in spoiled),
        "spoiled_runs": sum(v.runs for v in spoiled),
        "equal_refused": max(v.share for v in found["equal"].values()),
        "cases_until_refused_worse_10": round(cases, 1),
        "live_episodes_of_the_gate": round(live, 1),
        "tokens_vs_canary": round(ratio, 3),
    }


# --- real vLLM


PARTS = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")


def make_adapter(model: Path, folder: Path, noise: float, seed: int, rank: int = 8) -> None:
    """A LoRA of random directions in every layer. ``noise``: how far they reach, beside the weights' own spread."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    with safe_open(model / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            if not name.endswith(tuple(f"{part}.weight" for part in PARTS)):
                continue
            base = file.get_tensor(name).float()
            in_RI = torch.randn(rank, base.shape[1], generator=generator) / math.sqrt(rank)
            out_OR = torch.randn(base.shape[0], rank, generator=generator) * noise * base.std()
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            weights |= {f"{stem}.lora_A.weight": in_RI, f"{stem}.lora_B.weight": out_OR}
    folder.mkdir(parents=True)
    config = {"r": rank, "lora_alpha": rank, "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
    config |= {"target_modules": list(PARTS), "base_model_name_or_path": str(model)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, folder / "adapter_model.safetensors")


class TimedAgents:
    """Agents at a steady pace; how long each episode took, by whether a replay ran."""

    def __init__(self, driver: TaskDriver, pause: float) -> None:
        self.driver, self.pause = driver, pause
        self.replaying = False
        self.seconds: dict[bool, list[float]] = {False: [], True: []}

    async def work(self) -> None:
        for item in self.driver.task.items("train", 99):
            before, began = self.replaying, time.perf_counter()
            played = await self.driver.agent.episode(item, split="eval", post_reward=False)
            if before == self.replaying and played.calls:
                self.seconds[before].append((time.perf_counter() - began) / played.calls)
            await asyncio.sleep(self.pause)


def quantile(values: list[float], q: float) -> float | None:
    return round(float(np.quantile(values, q)), 4) if values else None


async def verdict_of(client: AsyncClient, name: str, seconds: float) -> Adapter:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = next(a for a in (await client.adapters()).adapters if a.name == name)
        if found.replay is not None and found.replay.outcome != "running":
            return found
        await asyncio.sleep(0.5)
    raise SystemExit(f"{name}: no verdict of its replay within {seconds:g} s")


async def success_of(driver: TaskDriver, count: int) -> float:
    items = list(itertools.islice(driver.task.items("eval", driver.seed), count))
    rewards = await asyncio.gather(*(driver.episode(item, "eval") for item in items))
    return statistics.fmean(r for r in rewards if r is not None)


async def real(args: argparse.Namespace) -> dict[str, object]:
    folder = args.data_dir.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    task = load_task("inbox")
    replay = {"cases": args.cases, "samples": args.samples, "sets": ["auto-sample"]}
    config = demo_config(task, 0, folder / "data", args.set)
    gate = config.gate.model_copy(update={"mode": "replay", "replay": config.gate.replay.model_copy(update=replay)})
    trainer = config.trainer.model_copy(update={"enabled": False})
    config = config.model_copy(update={"gate": gate, "trainer": trainer})
    progress, rows = Progress(), []
    with (folder / "log").open("w", buffering=1) as log:
        supervisor = Supervisor(lambda who, line: print(f"{who:8} | {line}", file=log))
        try:
            stack = await start_stack(config, supervisor, progress.say)
            driver = TaskDriver(task, await open_agent(task, f"{stack.url}/v1"), 0)
            first = itertools.islice(task.items("train", 0), args.cases)
            await asyncio.gather(*(driver.episode(item, "train") for item in first))
            base = await success_of(driver, args.held_out)
            timed = TimedAgents(driver, args.pause)
            working = asyncio.create_task(timed.work())
            async with AsyncClient(stack.url) as client:
                for n, noise in enumerate(args.noise, 1):
                    name = f"inbox@{n}"
                    make_adapter(task.model, config.adapters_dir / name, noise, n)
                    await asyncio.sleep(args.quiet)  # agents alone, to compare with
                    timed.replaying = True
                    await client.add_adapter(AdapterIn(path=name))
                    found = await verdict_of(client, name, 900)
                    timed.replaying = False
                    verdict = found.replay
                    assert verdict is not None
                    await client.promote(name, "to measure it")
                    while (await client.adapters()).live["inbox"] != name:
                        await asyncio.sleep(0.2)
                    held_out = await success_of(driver, args.held_out)
                    await client.rollback(name, "measured")
                    rows.append(
                        {
                            "noise": noise,
                            "held_out": round(held_out - base, 4),
                            "outcome": verdict.outcome,
                            "exact": verdict.exact,
                            "tokens": verdict.tokens,
                            "seconds": round((verdict.ended or 0.0) - verdict.began, 1),
                            "cases": sum(s.cases for s in verdict.sets),
                            "questions": {q.question: round(q.candidate - q.control, 4) for q in verdict.questions},
                        }
                    )
                    progress.say(json.dumps(rows[-1]))
            working.cancel()
        finally:
            await supervisor.stop()
    alone, beside = timed.seconds[False], timed.seconds[True]
    p99 = {"alone": quantile(alone, 0.99), "beside": quantile(beside, 0.99)}
    p50 = {"alone": quantile(alone, 0.5), "beside": quantile(beside, 0.5)}
    ratio = round(p99["beside"] / p99["alone"], 3) if p99["alone"] and p99["beside"] else None
    return {
        "base": round(base, 4), "versions": rows, "agents_p50": p50, "agents_p99": p99, "agents_p99_ratio": ratio,
        "agents_calls": [len(alone), len(beside)],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="replays of each simulated version")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="also real vLLM")
    parser.add_argument("--cases", type=int, default=60, help="of a real replay")
    parser.add_argument("--samples", type=int, default=4, help="of a real replay")
    parser.add_argument("--held-out", type=int, default=96, help="episodes that measure a real version")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.02, 0.5, 1.0, 4.0])
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two of the agents' episodes")
    parser.add_argument("--quiet", type=float, default=40.0, help="seconds of agents alone before each real replay")
    parser.add_argument("--data-dir", type=Path, default=Path("slipstream-data/replay"))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE")
    args = parser.parse_args()
    random.seed(args.seed)
    found = summary(simulated(args.runs, args.seed), canary(max(20, args.runs // 5)))
    print(json.dumps(found), file=sys.stderr)
    if args.real:
        found["real"] = asyncio.run(real(args))
    holds = (
        found["replay_right_function"] >= 0.95  # type: ignore[operator]
        and found["replay_right_ruler"] >= 0.9  # type: ignore[operator]
        and not found["spoiled_passed"]
        and found["equal_refused"] <= 0.01  # type: ignore[operator]
    )
    print(json.dumps(found | {"holds": bool(holds)}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
