"""Why there is no step yet: every stage from a call to a live adapter, with counts, causes and fixes."""

from __future__ import annotations

from enum import StrEnum
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
    "plugin",
]
"""In the order in which a call becomes an adapter."""


class Severity(StrEnum):
    """How bad a cause is, the worst first."""

    BLOCKS = "blocks"
    """No step can come, or the agent's calls fail, until somebody changes it."""
    SLOWS = "slows"
    """Steps come later, or learn from less, until somebody changes it."""
    REMARK = "remark"
    """It changes by itself, or nothing has to change."""

    @property
    def mark(self) -> str:
        return "!" if self is Severity.BLOCKS else "-"


class FunnelLine(Model):
    stage: Stage
    cause: str
    """Short and stable: a label in metrics."""
    count: int
    """How many episodes, groups, calls or seconds the text speaks of."""
    text: str
    fix: str | None = None
    severity: Severity = Severity.REMARK

    @property
    def blocks(self) -> bool:
        return self.severity is Severity.BLOCKS

    @property
    def sentence(self) -> str:
        """The line as status, doctor and the page show it. What strangers wrote into it makes no second one."""
        whole = f"{self.text} → {self.fix}" if self.fix else self.text
        return " ".join(whole.split("\n"))


class Funnel(Model):
    """What stands between calls and the next live adapter. ``slipstream status``, ``doctor`` and the page show it."""

    lines: list[FunnelLine] = Field(default_factory=list)
    """The worst first."""

    def troubles(self) -> list[FunnelLine]:
        """What somebody should change, the worst first."""
        return [line for line in self.lines if line.severity is not Severity.REMARK]

    def remarks(self) -> list[FunnelLine]:
        return [line for line in self.lines if line.severity is Severity.REMARK]
