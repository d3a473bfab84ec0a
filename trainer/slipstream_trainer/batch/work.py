"""A planned batch on the device, while it is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch

from slipstream_trainer.batch.layout import MicroBatch, Plan

PLACES = 1024
"""Scored positions of a micro-batch at which the KL of a step is taken over the whole vocabulary."""


def places_of(micro: MicroBatch, device: torch.device) -> torch.Tensor:
    """Evenly over a micro-batch's scored positions, at most ``PLACES``."""
    count = len(micro.slots.source_S)
    return torch.linspace(0, count - 1, min(count, PLACES)).round().long().to(device)


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
    teacher_logprobs_T: torch.Tensor | None = None
    """Of the policy with a user's words in its prompt (``algorithm.words``). NaN where nothing was said. None: nothing
    was said anywhere.
    """
    refused_T: torch.Tensor | None = None
    """Tokens of replies about which the words did not count."""
    guarded: int = 0
    """Sampled sequences whose mean ratio was out of bounds: their tokens weigh nothing."""

    def without_reference(self) -> torch.Tensor:
        """Tokens at which the KL term does not pull: guarded ones, and those without a reference. (T)"""
        guarded = self.importance_ratio_T == 0
        return guarded if self.referred_T is None else guarded | ~self.referred_T

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
