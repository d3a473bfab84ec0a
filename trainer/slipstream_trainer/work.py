"""A planned batch on the device, while it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from slipstream_trainer.plan import Plan


@dataclass(slots=True, eq=False)
class Work:
    """A plan's tokens on the device (T), filled while it is computed."""

    plan: Plan
    behavior_logprobs_T: torch.Tensor
    inverse_temperature_T: torch.Tensor | None
    advantage_T: torch.Tensor
    sample_T: torch.Tensor
    unit_T: torch.Tensor
    column_T: torch.Tensor
    policy_logprobs_T: torch.Tensor
    entropy_T: torch.Tensor
    trainer_logprobs_T: torch.Tensor
    importance_ratio_T: torch.Tensor
    reference_logprobs_T: torch.Tensor | None = None
    fresh: bool = True
    """No pass is complete yet: π_old and the weights are being written."""
    guarded: int = 0
    """Sampled sequences whose mean ratio was out of bounds: their tokens weigh nothing."""

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
            advantage,
            sample,
            unit,
            column,
            zeros,
            zeros.clone(),
            zeros.clone(),
            torch.ones_like(zeros),
        )
