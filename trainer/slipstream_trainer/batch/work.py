"""A planned batch on the device, while it is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch

from slipstream_trainer.batch.layout import MicroBatch, Plan

EXACT_KL_POSITIONS = 1024
"""Scored positions of a micro-batch at which the KL of a step is taken over the whole vocabulary."""


def places_of(micro: MicroBatch, device: torch.device) -> torch.Tensor:
    """Evenly over a micro-batch's scored positions, at most ``EXACT_KL_POSITIONS``."""
    count = len(micro.slots.source_S)
    return torch.linspace(0, count - 1, min(count, EXACT_KL_POSITIONS)).round().long().to(device)


@dataclass(slots=True, eq=False)
class Lesson:
    """What the first policy thinks of the replies with a user's words in the prompts (``algorithm.words``)."""

    row_T: torch.Tensor
    """Which row of ``hidden_WH`` a token has. -1: nothing was said about it."""
    hidden_WH: torch.Tensor
    """In the host's memory: the last layer's output, of which the head makes the distribution."""
    logprobs_T: torch.Tensor
    """Of the sampled tokens, for people. NaN where nothing was said."""
    kl_T: torch.Tensor
    """KL(π_teacher ‖ π_old) of each token."""
    apart_T: torch.Tensor
    """Divergence of π_θ and π_teacher at each token, as of the newest pass."""
    weight_T: torch.Tensor
    """How much it counts; 0 where nothing was said, or the words do not count."""
    refused_T: torch.Tensor
    """Tokens of replies about which the words do not count."""

    @classmethod
    def of(cls, token_W: torch.Tensor, hidden_WH: torch.Tensor, logprobs_W: torch.Tensor, tokens: int) -> Self:
        zeros_T = torch.zeros(tokens, device=token_W.device)
        row_T = torch.full_like(zeros_T, -1, dtype=torch.long)
        row_T[token_W] = torch.arange(len(token_W), device=token_W.device)
        logprobs_T = torch.full_like(zeros_T, float("nan"))
        logprobs_T[token_W] = logprobs_W
        zeros = (zeros_T.clone() for _ in range(4))
        return cls(row_T, hidden_WH.cpu(), logprobs_T, *zeros)

    @property
    def apart(self) -> float:
        """Mean divergence over the tokens that count; 0 where none does."""
        counts_T = self.weight_T > 0
        return float(self.apart_T[counts_T].mean()) if counts_T.any() else 0.0

    def of_these(self, token_S: torch.Tensor) -> torch.Tensor:
        """The places of those about which something was said."""
        return (self.row_T[token_S] >= 0).nonzero()[:, 0]


@dataclass(slots=True, eq=False)
class Work:
    """A plan's tokens on the device (T), filled while it is computed."""

    plan: Plan
    behavior_logprobs_T: torch.Tensor
    inverse_temperature_T: torch.Tensor | None
    filter_T3: torch.Tensor | None
    advantage_T: torch.Tensor
    sample_T: torch.Tensor
    unit_T: torch.Tensor
    column_T: torch.Tensor
    policy_logprobs_T: torch.Tensor
    entropy_T: torch.Tensor
    trainer_logprobs_T: torch.Tensor
    importance_ratio_T: torch.Tensor
    reference_logprobs_T: torch.Tensor | None = None
    referred_T: torch.Tensor | None = None
    """Where the reference was computed (``trainer.beta_share``); None: at every token."""
    reference_weight: float = 1.0
    """By how much the KL term there counts more, for the places where it was not computed."""
    fresh: bool = True
    """No pass is complete yet: π_old and the weights are being written."""
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    """Micro-batch (by ``id``) → hidden states at some places under π_old, (P, H): what a step is compared with."""
    looked: set[int] = field(default_factory=set)
    """Those that are looked at again after the step."""
    lesson: Lesson | None = None
    """None: nobody said anything."""

    @property
    def guarded(self) -> torch.Tensor:
        """Tokens that weigh nothing: those of calls whose mean ratio was out of bounds."""
        return self.importance_ratio_T == 0

    @property
    def guarded_calls(self) -> int:
        """Calls with such tokens. The same on each process, once a pass is complete."""
        return len(self.sample_T[self.guarded].unique())

    def without_reference(self) -> torch.Tensor:
        """Tokens at which the KL term does not pull: guarded ones, and those without a reference. (T)"""
        return self.guarded if self.referred_T is None else self.guarded | ~self.referred_T

    @classmethod
    def of(cls, plan: Plan, device: torch.device) -> Self:
        s = plan.scored
        cold = None if (s.temperature_T == 1.0).all() else 1.0 / torch.from_numpy(s.temperature_T).to(device)
        zeros = torch.zeros(s.tokens, device=device)
        engine, advantage, sample, unit, column = (
            torch.from_numpy(x).to(device)
            for x in (s.behavior_logprobs_T, s.advantage_T, s.sample_T, s.unit_T, s.column_T)
        )
        return cls(
            plan,
            engine,
            cold,
            None if s.filter_T3 is None else torch.from_numpy(s.filter_T3).to(device),
            advantage,
            sample,
            unit,
            column,
            zeros,
            zeros.clone(),
            zeros.clone(),
            torch.ones_like(zeros),
        )
