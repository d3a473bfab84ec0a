"""Does a replay find worse versions, and leave the others alone? ``python -m benchmarks.replay.bench_replay``.

The shipped test at 200 cases, on made-up replies: minutes of a CPU. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from benchmarks.harness import report

from slipstream.contract import CallRecord, EpisodeDetail
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_replay.beside import MAX_REPLIES_PER_SIDE
from slipstream_replay.comparison import JUDGE_MEASURE, Questions
from slipstream_replay.steps import ReplayCase, ReplayStep

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
    tags_C: np.ndarray, sampled: Callable[[], np.ndarray], judge: Callable[[np.ndarray], np.ndarray] | None = None,
    cut: np.ndarray | None = None,
) -> int:  # fmt: skip
    """Cases of all rounds after which the candidate is refused; 0: it is not. ``sampled``: a round's replies, right or
    wrong (2: sides, C: cases, T: steps, S: samples).
    """
    by, score = (JUDGE_MEASURE, None) if judge is not None else ("right", lambda _, message: message["right"])
    questions = Questions(detect, ALPHA, by, score, groups=[[f"tag.customer={t}"] for t in tags_C])
    seen = 0
    while True:
        right = sampled()
        if refusal := _round(questions, tags_C, right, judge(right) if judge is not None else None, cut):
            return seen + refusal
        if not questions.leans:
            return 0
        questions.again()
        seen += len(tags_C)


def _round(
    questions: Questions, tags_C: np.ndarray, right: np.ndarray, judged: np.ndarray | None, cut: np.ndarray | None
) -> int:
    for n, tag in enumerate(tags_C):
        episode = EPISODES[tag].model_copy(update={"id": f"e{n}"})
        case = ReplayCase(episode, [ReplayStep(call) for call in CALLS])
        for t, step in enumerate(case.steps):
            step.candidate, step.control = [[REPLIES[int(x)] for x in right[side, n, t]] for side in (0, 1)]
            if cut is not None and cut[n, t]:
                step.candidate[0] = CUT
            if judged is not None:
                a, b = judged[:, n, t].tolist()
                step.judged = [
                    (a[at : at + MAX_REPLIES_PER_SIDE], b[at : at + MAX_REPLIES_PER_SIDE])
                    for at in range(0, SAMPLES, MAX_REPLIES_PER_SIDE)
                ]
        questions.see(case)
        if questions.worse:
            return n + 1
    return 0


def steps_of(rng: np.random.Generator, effect: tuple[float, ...]) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
    """→ (tags, what makes a round's replies) as ``refused`` takes them. Cases differ in difficulty."""
    hard_C = rng.uniform(-0.25, 0.25, CASES)
    tags_C = rng.integers(0, TAGS, CASES)
    p_2C = np.clip(BASE + np.stack([hard_C + np.array(effect)[tags_C], hard_C]), 0.0, 1.0)
    return tags_C, lambda: rng.random((2, CASES, STEPS, SAMPLES)) < p_2C[:, :, None, None]


def ruler(rng: np.random.Generator, right: np.ndarray) -> np.ndarray:
    """A noisy judge's scores of four replies a side, seen together in both orders; it favours early places."""
    return np.concatenate(
        [_judged(rng, right[..., at : at + MAX_REPLIES_PER_SIDE]) for at in range(0, SAMPLES, MAX_REPLIES_PER_SIDE)],
        axis=-1,
    )


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
            tags_C, sampled = steps_of(rng, effect)
            by["function"].note(refused(tags_C, sampled))
            by["ruler"].note(refused(tags_C, sampled, functools.partial(ruler, rng)))
    winded = found["longer_winded_better"] = {"function": Verdicts()}
    for _ in range(runs):
        tags_C, sampled = steps_of(rng, WORLDS["better"])
        winded["function"].note(refused(tags_C, sampled, cut=rng.random((CASES, STEPS)) < WINDED * SAMPLES))
    return found


def canary(runs: int, base: float = BASE, worse: float = BASE - 0.1) -> float:
    """Episodes that a worse version answers until the gate takes it back, on the average."""
    from benchmarks.gate.bench_gate import success  # it compiles the gate first
    from benchmarks.gate.simulation import Simulation, World

    world = World(base, (worse,), success, every=10**9, episodes=20_000)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="replays of each simulated version")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep the result here, too")
    args = parser.parse_args()
    random.seed(args.seed)
    found = summary(simulated(args.runs, args.seed), canary(max(20, args.runs // 5)))
    holds = (
        found["replay_right_function"] >= 0.95  # type: ignore[operator]
        and found["replay_right_ruler"] >= 0.9  # type: ignore[operator]
        and not found["spoiled_passed"]
        and found["equal_refused"] <= 0.01  # type: ignore[operator]
    )
    report(found | {"holds": bool(holds)}, args.out)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
