"""What was learned: rewards over adapters and over time."""

from __future__ import annotations

from pydantic import Field

from slipstream.contract.base import Model


class LearningPoint(Model):
    """Rewards of the episodes of one adapter or one span of time."""

    series: str | None = None
    """The task, tag's value, split or arm that it is of (``each``); None: all together, or episodes without one."""
    adapter: str | None = None
    version: int | None = None
    """The adapter's; 0 is the base model."""
    start: float
    """When the first of these episodes began; of a span of time: its beginning."""
    end: float
    n: int
    mean: float
    se: float | None = None
    """Standard error of the mean; None for one episode."""
    success: float
    """Share of episodes with a reward of ``success_from`` or more."""
    success_se: float | None = None


class Learning(Model):
    """``GET learning``."""

    points: list[LearningPoint]
    """By series, then by version or time."""
    bucket: float | None = None
    """Seconds of a span of time."""
    success_from: float
    left_out: int = Field(default=0)
    """Series that have fewer episodes than those shown."""
