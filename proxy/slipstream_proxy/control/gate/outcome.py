"""What the gate learns about a finished episode."""

from __future__ import annotations

from slipstream_proxy.assignment import BEST, CANDIDATE, CONTROL, LIVE, chance


class ArmOutcome:
    """One finished training episode. ``version``: of the adapter that it is pinned to; probabilities: of the arms at
    its assignment.
    """

    def __init__(
        self,
        version: int,
        arm: str,
        live: float,
        control: float,
        best: float,
        candidate: float,
        task: str,
        reward: float,
    ) -> None:
        self.version, self.arm, self.task, self.reward = version, arm, task, reward
        self.live, self.control, self.best, self.candidate = live, control, best, candidate


def outcome_of(version: int, arm: str, chances: str, task: str, reward: float) -> ArmOutcome:
    """From what an episode and its pin keep (``assignment.Assignment``)."""
    live, control = chance(chances, LIVE), chance(chances, CONTROL)
    return ArmOutcome(version, arm, live, control, chance(chances, BEST), chance(chances, CANDIDATE), task, reward)
