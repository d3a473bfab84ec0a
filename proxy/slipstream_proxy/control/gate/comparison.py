"""Which runs are compared, and with what probability each got its arm. A run counts as evidence only beside those that
chance could have sent the other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.assignment import CANDIDATE_ARM, CONTROL_ARM, LIVE_ARM
from slipstream_proxy.control.gate.state import MIN_SCALE_REWARDS

if TYPE_CHECKING:
    from slipstream_proxy.control.gate.rules import ArmOutcome
    from slipstream_proxy.control.gate.state import TrialState


def with_control(trial: TrialState, outcome: ArmOutcome) -> tuple[bool, float] | None:
    """→ (whether it is an episode on trial, the probability of that among the two arms that are compared). None: it is
    an episode of neither.
    """
    canary = trial.settings.canary
    tested = outcome.candidate if canary else outcome.live
    reference = outcome.live if canary else outcome.control
    if tested <= 0.0 or reference <= 0.0 or _is_over(outcome, trial.floor):
        return None
    share = tested / (tested + reference)
    if outcome.arm == (CANDIDATE_ARM if canary else LIVE_ARM) and outcome.version > trial.floor:
        return True, share
    is_control = outcome.arm == (LIVE_ARM if canary else CONTROL_ARM) and outcome.version == trial.control
    return (False, share) if is_control else None


def with_best(trial: TrialState, outcome: ArmOutcome) -> tuple[bool, float] | None:
    """As ``with_control``, beside the best version: (whether it is an episode of what is served, its probability)."""
    # a control that is not the best one has no runs to compare with here: its probability says nothing
    apart = trial.control != trial.best and outcome.tried is not None and outcome.tried > trial.control
    reference = outcome.best if outcome.best > 0.0 or apart else outcome.control
    # after a rollback the control serves again, whose number is below those that were taken back
    back = serves_again(trial) is not None and outcome.tried == trial.control
    if outcome.live <= 0.0 or reference <= 0.0 or (_is_over(outcome, trial.best_floor) and not back):
        return None
    serves = outcome.version > trial.best_floor or (back and outcome.version == trial.control)
    tested = outcome.arm == LIVE_ARM and serves
    if not tested and (outcome.arm == LIVE_ARM or outcome.version != trial.best):
        return None
    return tested, outcome.live / (outcome.live + reference)


def serves_again(trial: TrialState) -> int | None:
    """The control, while nothing is on trial and it is compared with the best version alone."""
    return trial.control if trial.tried == trial.control != trial.best else None


def straggles(trial: TrialState, outcome: ArmOutcome) -> bool:
    """Whether it began before anything was compared, and ends now. Such runs come in the order of their ends: the
    longest ones, and those on an older scale, come last.
    """
    alone = outcome.live <= 0.0 and outcome.control <= 0.0 and outcome.candidate <= 0.0
    return alone and trial.on_trial and outcome.seconds is not None and trial.scale.count >= MIN_SCALE_REWARDS


def is_reference(trial: TrialState, outcome: ArmOutcome) -> bool:
    """Whether its adapter is one that is not on trial and was there before."""
    return outcome.version in (trial.control, trial.best) and outcome.version <= trial.floor


def _is_over(outcome: ArmOutcome, floor: int) -> bool:
    """Whether the version that it was compared with at its assignment is no longer evidence.

    After a rollback, episodes of both arms are still running. The tested ones are no evidence any more. The control's
    must not be either: successes of one arm alone look as if that arm were the better one.
    """
    return outcome.tried is not None and outcome.tried <= floor
