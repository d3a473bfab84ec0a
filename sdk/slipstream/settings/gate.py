"""How a new adapter goes live, and what takes it back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slipstream.settings.base import Section, Share


class GateConfig(Section):
    mode: Literal["guard", "canary", "manual"] = Field("guard", description="How a new adapter goes live.")
    holdout: Share = Field(0.1, description="guard: share of new episodes on the last accepted adapter.")
    share: Share = Field(0.1, description="canary: share of new episodes on the candidate.")
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = Field(0.05, description="Error level of the anytime-valid test.")
    min_pairs: int = Field(8, ge=1, description="Matched tasks before the test may decide.")
    max_episodes: int = Field(2000, ge=1, description="Candidate episodes after which it is accepted undecided.")
