"""What the gate is told: a trial's rules, what it can decide, one finished episode's outcome, and held-out runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from slipstream_proxy.assignment import BEST_ARM, CANDIDATE_ARM, CONTROL_ARM, LIVE_ARM, chance
from slipstream_proxy.control.gate.guards import Direction


class Decision(StrEnum):
    UNDECIDED = "undecided"
    ACCEPT = "accept"
    ROLLBACK = "rollback"
    """To the last accepted version."""
    ROLLBACK_BEST = "rollback_best"
    """To the best version: small losses have added up."""
    ROLLBACK_GROUP = "rollback_group"
    """For one group of runs alone."""


@dataclass(kw_only=True)
class TrialSettings:
    canary: bool = False
    holdout: float = 0.1
    share: float = 0.1
    plan: list[float] = field(default_factory=list)
    """Canary: shares one after the other; empty: ``share`` alone."""
    first: list[str] = field(default_factory=list)
    """Canary: who has the plan's first stage to themselves."""
    alpha: float = 0.01
    settle: int = 500
    reward_range: tuple[float, float] | None = None
    deadline: float | None = None
    missing_fails: bool = False
    """A run without a reward is a failure, however many have none."""
    by_group: bool = True
    """What is worse for one group alone is taken back."""
    group_alone: bool = False
    """For that group alone."""
    guards: dict[str, Direction] = field(default_factory=dict)
    guard_action: Literal["freeze", "rollback", "say"] = "freeze"
    shifts: bool = True


@dataclass(slots=True)
class ArmOutcome:
    """One training episode. ``version``: of the adapter that it is pinned to; probabilities: of the arms at its
    assignment; ``tried``: the version that was on trial then, None where that was not written down. ``seconds``: from
    its assignment until its reward was known; None: not measured. ``finished``: it had a reward before the deadline.
    ``groups``: names of those that it belongs to, as ``tag.customer=acme``. ``eid``: which episode it is. ``at``:
    when it was assigned, or when its reward was known where that is not known; seconds since the epoch.
    ``measures``: of the guards, as far as they are known.
    """

    version: int
    arm: str
    live: float
    control: float
    best: float
    candidate: float
    task: str
    reward: float
    tried: int | None = None
    seconds: float | None = None
    finished: bool = True
    groups: tuple[str, ...] = ()
    eid: str = ""
    at: float = 0.0
    measures: dict[str, float] = field(default_factory=dict)


class HeldOut(NamedTuple):
    """Rewards of held-out runs."""

    n: int = 0
    mean: float = 0.0
    std: float = 0.0

    def joined(self, more: HeldOut) -> HeldOut:
        """All of them together."""
        n = self.n + more.n
        mean = (self.n * self.mean + more.n * more.mean) / max(n, 1)
        squares = sum(r.n * (r.std**2 + (r.mean - mean) ** 2) for r in (self, more))
        return HeldOut(n, mean, math.sqrt(squares / max(n, 1)))


def outcome_of(version: int, arm: str, chances: str, task: str, reward: float, tried: int | None = None) -> ArmOutcome:
    """From what an episode and its pin keep (``assignment.Assignment``)."""
    live, control = chance(chances, LIVE_ARM), chance(chances, CONTROL_ARM)
    best, candidate = chance(chances, BEST_ARM), chance(chances, CANDIDATE_ARM)
    return ArmOutcome(version, arm, live, control, best, candidate, task, reward, tried)
