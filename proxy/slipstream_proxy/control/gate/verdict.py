"""What the evidence decides: an acceptance, a rollback and to where, or that a newer version waits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from slipstream_proxy.control.gate import suspicion
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.gate.rules import Decision
from slipstream_proxy.control.gate.shares import is_among_first
from slipstream_proxy.control.gate.suspicion import MIN_OWN_EPISODES

if TYPE_CHECKING:
    from slipstream_proxy.control.gate.state import TrialState

HOLD_GROWTH: Final = 2.0
"""Growth of the evidence above which a newer version waits (``gate.pace = "careful"``), and above which the control,
not the best version, is what a rollback goes back to.
"""
HUNG_LOG, CONTROL_LOG = math.log(1.25), math.log(10.0)
"""Logarithm of a bet's factor for each of a version's first runs, while all of them lack a reward: it hangs. And the
most that ``Deadline.borne_out`` adds since the version came. Null hypothesis, beside that one's: given the past, a
fifth or more of the version's runs are rated. So the product of both bets has mean 1 at most.
"""


def verdict_on(trial: TrialState) -> Decision:
    if trial.unsettled or (not trial.on_trial and trial.tried == trial.best):
        return Decision.UNDECIDED
    if evidence_against(trial) >= 1.0 / trial.settings.alpha:
        return _rollback(trial)
    if trial.settings.guard_action == "rollback" and suspicion.alarm(trial) is not None:
        return Decision.ROLLBACK
    accepted = _may_accept(trial) and _is_accepted(trial) and not trial.scale.is_coarse()
    return Decision.ACCEPT if accepted else Decision.UNDECIDED


def evidence_against(trial: TrialState) -> float:
    """All of it. A version hangs if none of its first runs gets a reward, while the control's do."""
    shown = trial.evidence.against(best=False) + trial.evidence.against(best=True)
    runs, borne_out = trial.runs, min(trial.deadline.borne_out - trial.borne_out, CONTROL_LOG)
    hangs = runs.own == runs.own_late and runs.own * HUNG_LOG + borne_out >= -math.log(trial.settings.alpha)
    return max(shown, trial.evidence.suspected()) if hangs else shown


def _rollback(trial: TrialState) -> Decision:
    # What fails altogether is worse than both: that says nothing against the control.
    if trial.settings.group_alone and worst_group(trial) is not None:
        return Decision.ROLLBACK_GROUP
    of_control = trial.evidence.worse.growth() >= HOLD_GROWTH or suspicion.by_group(trial, best=False) >= 1.0
    slides = is_shown_by_best(trial) and not of_control
    return Decision.ROLLBACK_BEST if slides or not trial.on_trial else Decision.ROLLBACK


def _may_accept(trial: TrialState) -> bool:
    # where some go first, what they say of it is not enough for everybody
    least = 2 * MIN_OWN_EPISODES if trial.settings.canary and trial.settings.first else MIN_OWN_EPISODES
    held = is_among_first(trial) or suspicion.is_frozen(trial)
    return trial.on_trial and trial.runs.own >= least and not held


def _is_accepted(trial: TrialState) -> bool:
    settled = trial.runs.since >= trial.settings.settle
    proven = trial.evidence.better.wealth >= 1.0 / trial.settings.alpha and trial.runs.own_sum >= 0.0
    if not settled and not proven:
        return False
    # the evidence for "better" is of all versions on trial together: the newest must not have lost it again
    heard = settled or not trial.settings.by_group or trial.evidence.groups.is_heard(best=False)
    return (proven and heard and suspicion.is_calm_aside(trial)) or (settled and suspicion.is_trusted(trial))


def beats_best(trial: TrialState) -> bool:
    """Whether what is served was shown to be better than the best version. Groups are compared with that one until each
    had runs enough: afterwards nobody looks.
    """
    seen = trial.evidence
    quiet = seen.groups.is_heard(best=True) and not suspicion.by_group(trial, best=True)
    return seen.better_best.wealth >= 1.0 / trial.settings.alpha and (quiet or not trial.settings.by_group)


def is_shown_by_best(trial: TrialState) -> bool:
    """Whether most of the evidence against what is served comes from the comparison with the best version."""
    seen = trial.evidence
    return trial.control != trial.best and seen.against(best=True) > seen.against(best=False)


def worst_group(trial: TrialState) -> tuple[str, BettingDetector] | None:
    """→ (name, its bets) of the group that most of the evidence against what is served comes from; None: it comes from
    all runs together.
    """
    seen = trial.evidence
    of_groups = seen.groups.wealth(best=False) + seen.groups.wealth(best=True)
    if not trial.settings.by_group or of_groups <= seen.worse.wealth + seen.worse_best.wealth:
        return None
    return seen.groups.worst(best=is_shown_by_best(trial))


def own_difference(trial: TrialState) -> float | None:
    """Mean of the served version's own runs minus that of the control's, in the scale's units. None: an arm is
    empty.
    """
    worse, runs = trial.evidence.worse, trial.runs
    if not runs.own or not worse.n_reference:
        return None
    return runs.own_above / runs.own - worse.sum_reference / worse.n_reference


def is_sliding(trial: TrialState) -> bool:
    """Whether a slow slide from the best version is likely."""
    return trial.tried != trial.best and trial.evidence.worse_best.growth() > HOLD_GROWTH


def lacks_own(trial: TrialState) -> bool:
    """Whether only rewards of the served version itself are missing for it to be accepted: where rewards come later
    than versions, none would ever be.
    """
    return suspicion.is_due(trial) and trial.runs.own < MIN_OWN_EPISODES and suspicion.is_trusted(trial)
