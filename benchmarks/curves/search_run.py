"""One run of a search: a policy plays a task in process and is trained by the trainer's own step, on batches as the proxy
makes them. What is measured beside the reward: how many groups teach nothing, how much of a batch is replies that were cut
off, how far two batches agree on where to go, and whether the mean of the last versions is better than the last of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from clue.make_model import Played as Investigated
from common.sampling import Conversation
from common.task import Item, load_task
from mail.make_model import Searching
from retail.make_model import Served
from search_sampler import Call, PolicySampler, merged_weights
from tictactoe.make_model import GamePlayed
from twenty48.make_model import Played as Slid
from words.make_model import Played as Guessed

from slipstream.config import Config
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.batch.rows import Sample
from slipstream_trainer.model.policy import load_policy
from slipstream_trainer.step.step import plan_batch, train
from slipstream_trainer.step.trainer import CapturedGRPOTrainer

__all__ = ["STARTS", "Batch", "Search", "rounded"]

Start = Callable[[Any, random.Random], Conversation]
STARTS: dict[str, tuple[Start, int | None]] = {
    "2048": (lambda item, _: Slid(item), None),
    "clue": (lambda item, _: Investigated(item), 48),
    "mail": (lambda item, _: Searching(item), 32),
    "retail": (lambda item, _: Served(item), 32),
    "tictactoe": (GamePlayed, None),
    "words": (lambda item, _: Guessed(item), None),
}
"""Task → how an episode begins, and the most tokens of a reply that its agent asks for."""
SHORTCUTS = ("learning_rate", "target_kl", "min_groups", "max_groups", "loss", "advantage", "lora_rank", "inner_steps")
"""Settings of the trainer with an option of their own."""
FIGURES = (
    "reward",
    "entropy",
    "kl",
    "kl_target",
    "learning_rate",
    "learning_rate_scale",
    "grad_norm",
    "tokens",
    "logprob_gap",
    "shortened",
)
SHOWN = 24
"""Tokens of a reply that was cut off that the curve shows."""
DIGITS = 4
AVERAGE = 0.9
"""What the mean of the versions keeps of the older ones at each step: about the last ten count."""


@dataclass
class Batch:
    """Episodes of some groups, played by one version of the policy."""

    samples: list[Sample]
    rewards: list[list[float]]
    """Of each group."""
    cut: list[Call] = field(default_factory=list)
    """Those that did not end by themselves."""

    @property
    def cut_tokens(self) -> int:
        """Sampled tokens of replies that did not end by themselves."""
        return sum(len(call.reply) for call in self.cut)

    @property
    def equal(self) -> float:
        """Share of the groups whose rewards are all the same: they teach nothing."""
        return statistics.fmean(float(np.ptp(group) == 0) for group in self.rewards)


@dataclass
class Search:
    """One task, one seed, one set of settings."""

    args: argparse.Namespace
    config: Config
    trainer: CapturedGRPOTrainer = field(init=False)
    pace: StepPace = field(default_factory=StepPace)
    steps: int = 0
    episodes: int = 0

    def __post_init__(self) -> None:
        args = self.args
        self.task = load_task(args.task)
        self.start, tokens = STARTS[args.task]
        self.rng = random.Random(args.seed)
        model, tokenizer = load_policy(self.config)
        self.trainer = CapturedGRPOTrainer(model, tokenizer, self.config, self.config.root / "trainer")
        self.sampler = PolicySampler(str(self.task.model), tokenizer, self.trainer.device, tokens)
        torch.manual_seed(args.seed)
        self.items = self.task.items("train", args.seed)
        self.held_items = list(itertools.islice(self.task.items("eval", args.seed), args.held_out))
        self.versions = deque([merged_weights(self.trainer.model)], maxlen=args.stale + 1)
        self.average = self.versions[-1]

    def play(self, items: Sequence[Item]) -> tuple[list[Conversation], list[list[Call]]]:
        """One episode of each."""
        episodes = [self.start(item, self.rng) for item in items]
        return episodes, self.sampler.play(episodes)

    def held_out(self, weights: dict[str, torch.Tensor] | None = None) -> float:
        """Mean reward of one episode of each held-out item, by the newest version or by these weights."""
        self.sampler.load(weights or self.versions[-1])
        self.sampler.stumble = 0.0
        episodes, _ = self.play(self.held_items)
        return statistics.fmean(e.reward for e in episodes)

    def batch(self, groups: int) -> Batch:
        """So many groups of runs, by the version that is `--stale` steps old. With --informative, only such count."""
        self.sampler.load(self.versions[0])
        self.sampler.stumble = self.args.stumble
        found = Batch([], [])
        while groups > 0:
            taken = list(itertools.islice(self.items, groups))
            episodes, calls = self.play([item for item in taken for _ in range(self.args.size)])
            self.episodes += len(episodes)
            made = len(found.rewards)
            for g in range(groups):
                runs = range(g * self.args.size, (g + 1) * self.args.size)
                rewards = [float(episodes[i].reward) for i in runs]
                found.rewards.append(rewards)
                for i in runs:
                    said = calls[i]
                    found.cut += [c for c in said if c.cut]
                    found.samples += self.samples(
                        f"g{made + g}", f"e{made * self.args.size + i}", said, rewards[i - runs[0]]
                    )
            groups = sum(np.ptp(r) == 0 for r in found.rewards[made:]) if self.args.informative else 0
            if len(found.rewards) >= self.config.trainer.max_groups * 4:
                break
        return found

    def samples(self, group: str, episode: str, calls: Sequence[Call], reward: float) -> Iterator[Sample]:
        """The rows that a batch of the proxy would have."""
        for n, call in enumerate(calls):
            s = Sample(
                group, "task", episode, f"{episode}-{n}", n, 0,
                np.array(call.prompt, np.int32), np.array(call.reply, np.int32), np.array(call.logprobs, np.float32),
                reward, staleness=len(self.versions) - 1,
            )  # fmt: skip
            if call.cut and self.args.leave_out_cut:
                s.trainable, s.reason = False, "cut"
            yield s

    def wanted(self) -> int:
        """Groups of a step: those that ended since the last one, within the trainer's bounds."""
        t = self.config.trainer
        return min(t.max_groups, max(t.min_groups, self.args.groups))

    def step(self) -> dict[str, Any]:
        """Play a batch and train on it. → A point of the curve."""
        batch = self.batch(self.wanted())
        result = train(self.trainer, batch.samples, self.pace, self.steps)
        if result.outcome == "step":
            self.steps += 1
            self.versions.append(merged_weights(self.trainer.model))
            self.average = {
                name: torch.lerp(self.versions[-1][name], old, AVERAGE) for name, old in self.average.items()
            }
        tokens = sum(len(s.completion_C) for s in batch.samples)
        point = {name: result.figures[name] for name in FIGURES if name in result.figures}
        point |= {"equal": batch.equal, "cut_tokens": batch.cut_tokens / max(1, tokens)}
        if batch.cut:
            point["cut_text"] = str(self.sampler.tokenizer.decode(batch.cut[0].reply[:SHOWN]))
        return point | ({} if result.outcome == "step" else {"outcome": f"{result.outcome}: {result.reason}"})

    def agreement(self, batches: int) -> float | None:
        """The mean cosine between the gradients of so many batches of one policy: 1 is no noise, 0 nothing but noise."""
        found = [self.gradient(self.batch(self.wanted())) for _ in range(batches)]
        kept = torch.stack([torch.nn.functional.normalize(g, dim=0) for g in found if g is not None])
        if len(kept) < 2:
            return None
        cosines = kept @ kept.T
        return float((cosines.sum() - cosines.trace()) / (len(kept) * (len(kept) - 1)))

    def gradient(self, batch: Batch) -> torch.Tensor | None:
        """All gradients in a row, before they are clipped; None where no group teaches anything."""
        assign(batch.samples, self.config.trainer.advantage)
        plan = plan_batch(self.trainer, batch.samples)
        if not plan.scored.tokens:
            return None
        self.trainer.backward(self.trainer.start(plan))
        found = torch.cat([p.grad.flatten() for p in self.trainer.trained if p.grad is not None])
        self.trainer.model.zero_grad(set_to_none=True)
        return found

    def change(self, step: int) -> None:
        """Set what `--then` says of this step: an option of this run, or a setting of the trainer."""
        for at, name, value in (re.split("[:=]", change) for change in self.args.then):
            if int(at) == step and hasattr(self.args, name) and name not in SHORTCUTS:
                setattr(self.args, name, type(getattr(self.args, name))(value))
            elif int(at) == step:
                t = self.config.trainer
                setattr(t, name, type(getattr(t, name))(value))

    def run(self) -> dict[str, Any]:
        """All steps, or as many as the time allows. → What the last line says."""
        args, began = self.args, time.monotonic()
        curve: list[dict[str, Any]] = [{"step": 0, "held_out": self.held_out()}]
        expert = self.task.expert(self.held_items)
        longest = 0.0
        for n in range(1, args.steps + 1):
            start = time.time()
            self.change(n)
            point = {"step": n, **self.step()}
            if n % args.every == 0 or n == args.steps:
                point["held_out"] = self.held_out()
                if args.average:
                    point["held_out_average"] = self.held_out(self.average)
                if args.agreement:
                    point["agreement"] = self.agreement(args.agreement)
            curve.append(point)
            if args.verbose or "held_out" in point:
                print(json.dumps(rounded(point)), file=sys.stderr, flush=True)
            longest = max(longest, time.time() - start)
            if time.monotonic() - began > args.seconds or time.time() + 2 * longest > args.deadline:
                break
        if "held_out" not in curve[-1]:
            curve[-1]["held_out"] = self.held_out()
        held = [point["held_out"] for point in curve if "held_out" in point]
        way = expert - held[0]
        late = held[-max(1, len(held) // 4) :]
        return {
            "task": args.task, "seed": args.seed, "settings": args.given, "base": held[0], "last": held[-1], "expert": expert,
            "gain": (held[-1] - held[0]) / way, "gain_late": (statistics.fmean(late) - held[0]) / way,
            "gain_best": (max(held) - held[0]) / way, "steps": len(curve) - 1, "episodes": self.episodes,
            "seconds": time.monotonic() - began, "curve": curve,
        }  # fmt: skip


def rounded(value: Any) -> Any:
    """Numbers to a few digits, in whatever they are nested."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
