"""What a trial goes by, and what it can decide."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Decision(StrEnum):
    UNDECIDED = "undecided"
    ACCEPT = "accept"
    ROLLBACK = "rollback"
    """To the last accepted version."""
    ROLLBACK_BEST = "rollback_best"
    """To the best version: small losses have added up."""


@dataclass(kw_only=True)
class TrialSettings:
    canary: bool = False
    holdout: float = 0.1
    share: float = 0.1
    alpha: float = 0.01
    settle: int = 500
    reward_range: tuple[float, float] | None = None
    shifts: bool = True
