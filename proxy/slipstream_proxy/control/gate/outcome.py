"""What the gate learns about a finished episode."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_proxy.assignment import BEST, CANDIDATE, CONTROL, LIVE, chance


@dataclass(slots=True)
class ArmOutcome:
    """One finished training episode. ``version``: of the adapter that it is pinned to; probabilities: of the arms at
    its assignment; ``tried``: the version that was on trial then, None where that was not written down.
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


def outcome_of(version: int, arm: str, chances: str, task: str, reward: float, tried: int | None = None) -> ArmOutcome:
    """From what an episode and its pin keep (``assignment.Assignment``)."""
    live, control = chance(chances, LIVE), chance(chances, CONTROL)
    best, candidate = chance(chances, BEST), chance(chances, CANDIDATE)
    return ArmOutcome(version, arm, live, control, best, candidate, task, reward, tried)
