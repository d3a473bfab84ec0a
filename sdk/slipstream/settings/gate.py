"""How a new adapter goes live, and what takes it back."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from slipstream.settings.base import Section, Share

REPLACED = {
    "min_pairs": "gate.settle (finished episodes on trial before an unsuspected adapter is accepted)",
    "max_episodes": "gate.settle (finished episodes on trial before an unsuspected adapter is accepted)",
}


class GateConfig(Section):
    mode: Literal["guard", "canary", "manual"] = Field("guard", description="How a new adapter goes live.")
    holdout: Share = Field(
        0.1, description="guard: share of new episodes on accepted adapters. It grows under suspicion."
    )
    share: Share = Field(0.1, description="canary: share of new episodes on the candidate.")
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.01, description="Probability that an adapter is taken back although it is not worse, over 2,000 episodes."
    )
    settle: int = Field(
        500, ge=20, description="Episodes on trial after which an adapter without suspicion is accepted."
    )
    pace: Literal["careful", "go"] | Annotated[int, Field(ge=1)] = Field(
        "careful",
        description="Newer versions while one is on trial. careful: wait while a slow slide is suspected; "
        "go: never wait; a number: wait after so many undecided versions.",
    )
    reward_range: tuple[float, float] | None = Field(
        None, description="[lowest, highest] reward; None: learned from the rewards, robustly."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_replaced(cls, data: Any) -> Any:
        for name in REPLACED if isinstance(data, dict) else ():
            if name in data:
                raise ValueError(f"gate.{name} is gone: the new name is {REPLACED[name]}")
        return data

    @field_validator("reward_range")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (math.isfinite(value[1] - value[0]) and value[0] < value[1]):
            raise ValueError("two finite numbers, the lower one first")
        return value
