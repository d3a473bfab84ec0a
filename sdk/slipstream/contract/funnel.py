"""Why there is no step yet: every stage from a call to a live adapter, with counts, causes and fixes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.contract.base import Model

Stage = Literal[
    "engine",
    "store",
    "calls",
    "episodes",
    "groups",
    "judge",
    "reward",
    "untrainable",
    "lost",
    "ready",
    "trainer",
    "step",
    "gate",
]
"""In the order in which a call becomes an adapter."""


class FunnelLine(Model):
    stage: Stage
    cause: str
    """Short and stable: a label in metrics."""
    count: int
    """How many episodes, groups, calls or seconds the text speaks of."""
    text: str
    fix: str | None = None
    blocks: bool = False
    """No step can come until this changes."""

    @property
    def sentence(self) -> str:
        """The line as status, doctor and the page show it."""
        return f"{self.text} → {self.fix}" if self.fix else self.text


class Funnel(Model):
    """What stands between calls and the next live adapter. ``slipstream status``, ``doctor`` and the page show it."""

    lines: list[FunnelLine] = Field(default_factory=list)

    def blocking(self) -> list[FunnelLine]:
        return [line for line in self.lines if line.blocks]
