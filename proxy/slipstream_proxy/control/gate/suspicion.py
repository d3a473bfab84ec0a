"""What seems to speak against the version on trial before anything is shown: it moves shares and holds back an
acceptance, and takes nothing back. A suspicion is a number from 0 (none) to 1 (the control gets all that it may).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from slipstream_proxy.control.gate.detector import SEEN_ERRORS, BettingDetector
from slipstream_proxy.control.gate.groups import SHOWN_RUNS
from slipstream_proxy.control.gate.guards import Guard

if TYPE_CHECKING:
    from slipstream_proxy.control.gate.state import TrialState

MIN_OWN_EPISODES: Final = 16
"""Finished episodes of a version itself before it may be accepted."""
HELD_SETTLES: Final = 4
"""Times ``settle``: so many episodes on trial a loss of a group, or of a guard, that may still be chance holds back an
acceptance.
"""
LACKING_SETTLES: Final = 2
"""Times ``settle``: so many episodes on trial, at most, an acceptance waits for the first runs of rare groups."""
MAX_WAIT_SETTLES: Final = 20
"""Times ``settle``: so many episodes on trial, at most, an acceptance waits for what would show a loss."""
RARE_VALUE = 0.2
"""Of what the control gets, in the scale's units: below it, successes are rare."""
RARE_WAIT_SETTLES, RARE_ERRORS = 40, 2.3
"""As ``MAX_WAIT_SETTLES`` and ``SEEN_ERRORS``, where half of what the control gets may be lost: of successes of 2 %, a
thousand runs have twenty, and each of many looks may be the one that errs.
"""
MAX_SLIDE: Final = 0.045
"""Of the rewards' range: a larger loss beside the best version must be excluded before an acceptance. Three versions
that each lose 0.02 add up to more.
"""
WAITING_PART: Final = 0.4
"""Of the share that suspicion can give, where an acceptance waits for runs of the control, or of the best version."""
TRUSTED_Z: Final = -1.5
OWN_Z: Final = -2.0
"""A version whose own rewards lie further below those of both the control and the versions before it, in standard
errors, is not accepted yet.
"""


def by_rewards(detector: BettingDetector) -> float:
    z = detector.z()
    return max(1.0 if z < -1.6 else 0.4 if z < -1.0 else 0.0, of_growth(detector.growth()))


def of_growth(growth: float) -> float:
    return 1.0 if growth > 2.0 else 0.4 if growth > 1.5 else 0.0


def by_group(trial: TrialState, *, best: bool) -> float:
    """What is seen of one group holds back an acceptance, but only for a while."""
    if not trial.settings.by_group:
        return 0.0
    groups = trial.evidence.groups
    short = trial.runs.since < HELD_SETTLES * trial.settings.settle and groups.is_short(best=best)
    return 1.0 if short else of_growth(groups.suspicion(best=best))


def by_guard(trial: TrialState) -> float:
    if not _guards_speak(trial):
        return 0.0
    guards = trial.evidence.guards
    short = trial.runs.since < HELD_SETTLES * trial.settings.settle and guards.is_short()
    return 1.0 if short or alarm(trial) is not None else of_growth(guards.growth())


def by_replay(trial: TrialState) -> float:
    """Until the version's own runs say more."""
    speaks = trial.replayed is not None and trial.runs.own < MIN_OWN_EPISODES
    return of_growth(trial.replayed or 0.0) if speaks else 0.0


def by_best(trial: TrialState) -> float:
    """Beside the best version."""
    return max(by_rewards(trial.evidence.worse_best), by_group(trial, best=True))


def by_slide(trial: TrialState) -> float:
    """Only a slide from the best version, which may still be there, keeps it from being accepted."""
    return WAITING_PART if is_due(trial) and may_slide(trial) else 0.0


def by_rare(trial: TrialState) -> float:
    """As ``by_slide``, of a loss of the little that the control gets."""
    return WAITING_PART if is_due(trial) and may_lose_half(trial) else 0.0


def doubts(trial: TrialState) -> list[str]:
    """What holds a canary back, in words."""
    found = {
        "it seems to get less reward": by_rewards(trial.evidence.worse),
        "a group seems to get less": by_group(trial, best=False),
        "a guard is worse": by_guard(trial),
    }
    return [text for text, doubt in found.items() if doubt > 0.0]


def is_due(trial: TrialState) -> bool:
    """Whether it has had the runs after which a version is accepted, if nothing speaks against it."""
    return trial.on_trial and trial.runs.since >= trial.settings.settle


# a guard that was shown to be worse


def alarm(trial: TrialState) -> Guard | None:
    """The guard that was shown to be worse on trial than with the control; None: there is none."""
    return trial.evidence.guards.of(trial.evidence.latched) if trial.on_trial else None


def is_frozen(trial: TrialState) -> bool:
    """A person has to decide on the version on trial."""
    if trial.frozen_by_hand is not None:
        return trial.frozen_by_hand
    return trial.settings.guard_action == "freeze" and alarm(trial) is not None


def _guards_speak(trial: TrialState) -> bool:
    return trial.settings.guard_action != "say" and trial.frozen_by_hand is not False


# what an acceptance waits for


def is_trusted(trial: TrialState) -> bool:
    """Nothing speaks against the version on trial, and what was seen would have shown a loss."""
    return is_calm(trial) and not may_slide(trial) and not may_lose_half(trial) and not lacks_groups(trial)


def is_calm(trial: TrialState) -> bool:
    """Nothing speaks against the version on trial."""
    seen, runs = trial.evidence, trial.runs
    calm = seen.worse.growth() < 1.5 and seen.worse_best.growth() < 2.0 and seen.hung.growth() < 1.5
    calm = calm and is_calm_aside(trial) and doubted_group(trial) is None and doubted_guard(trial) is None
    fair = runs.own_sum >= OWN_Z * 0.5 * runs.own**0.5  # a reward spreads by at most one half
    return calm and fair and seen.worse.z() > TRUSTED_Z


def is_calm_aside(trial: TrialState) -> bool:
    """Neither a group nor a guard speaks against it, whatever the reward says."""
    return max(by_group(trial, best=False), by_group(trial, best=True), by_guard(trial)) < 1.0


def doubted_group(trial: TrialState) -> tuple[str, BettingDetector] | None:
    """→ (group, its bets) that an acceptance waits for, but only for a while: it seems to lose. None: there is none."""
    waits = trial.settings.by_group and trial.runs.since < HELD_SETTLES * trial.settings.settle
    return trial.evidence.groups.doubted() if waits else None


def lacks_groups(trial: TrialState) -> bool:
    """Whether some group had too few of the runs on trial to show that it fails altogether."""
    waits = trial.settings.by_group and trial.runs.since < LACKING_SETTLES * trial.settings.settle
    return waits and not trial.evidence.groups.is_heard(best=False, least=SHOWN_RUNS)


def doubted_guard(trial: TrialState) -> Guard | None:
    """As ``doubted_group``, of the guards."""
    waits = _guards_speak(trial) and trial.runs.since < MAX_WAIT_SETTLES * trial.settings.settle
    return trial.evidence.guards.doubted() if waits else None


def missed_loss(trial: TrialState) -> float:
    """The largest loss beside the control, in the scale's units, that what was seen does not exclude: with 95 % a
    larger one would have been seen. 1.0: nothing is known.
    """
    return _missed(*trial.evidence.worse.estimate())


def missed_slide(trial: TrialState) -> float:
    """As ``missed_loss``, beside the best version, of the last ``SLIDE_VERSIONS`` that were accepted, and what is on
    trial.
    """
    canary, seen = trial.settings.canary, trial.evidence
    found = [seen.worse.estimate()] if canary else []
    if not canary or trial.control != trial.best:  # a canary's control is compared with the best one
        found.append(seen.worse_best.estimate(seen.marks[0]))
    difference, error = sum(d for d, _ in found), math.hypot(*(e for _, e in found))
    return _missed(difference, error)


def may_slide(trial: TrialState) -> bool:
    """Whether slow losses may have added up to more than ``MAX_SLIDE``, as far as is seen."""
    apart = trial.control != trial.best or trial.settings.canary
    waits = apart and trial.runs.since < MAX_WAIT_SETTLES * trial.settings.settle
    return waits and bool(trial.settings.holdout) and missed_slide(trial) > MAX_SLIDE


def may_lose_half(trial: TrialState) -> bool:
    """Whether half of what the control gets may be lost, as far as is seen: where successes are rare, a few runs
    without one say nothing.
    """
    waits = trial.runs.since < RARE_WAIT_SETTLES * trial.settings.settle
    worse, usual = trial.evidence.worse, trial.baseline.whole.value
    difference, error = worse.estimate()
    # of few runs without a success, the spread that was seen says nothing
    if usual < RARE_VALUE and worse.n_tested and worse.n_reference:
        error = max(error, math.sqrt(usual * (1.0 - usual) * (1.0 / worse.n_tested + 1.0 / worse.n_reference)))
    return waits and min(RARE_ERRORS * error - difference, 1.0) > 0.5 * usual


def _missed(difference: float, error: float) -> float:
    return min(SEEN_ERRORS * error - difference, 1.0)
