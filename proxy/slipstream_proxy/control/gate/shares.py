"""Which new episodes get which version: shares of the control, of the best version, or of a canary's candidate. All
that they depend on is known before an assignment, so they bend no bet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.assignment import BEST_ARM, CANDIDATE_ARM, CONTROL_ARM
from slipstream_proxy.control.gate import suspicion
from slipstream_proxy.control.gate.suspicion import MIN_OWN_EPISODES

if TYPE_CHECKING:
    from slipstream_proxy.control.gate.state import TrialState

SILENT_SHARE: Final = 0.9
"""Of the control, while no run of the version on trial has ended although the control's would have."""
YOUNG_EPISODES: Final = 12
"""Finished episodes of a version before which the control gets ``YOUNG_SHARE``: a broken adapter shows at once."""
YOUNG_SHARE: Final = 0.3
FIRST_SHARE: Final = 0.5
"""Of the runs of those who go first: the others are what they are compared with."""
BEST_PART: Final = 0.7
"""The best version's part of the held-out share, while control and best differ."""
MOST_SHARE: Final = 0.5


def shares_of(trial: TrialState) -> tuple[float, float]:
    """Shares of new episodes for (control, best); the rest is live. In canary mode the first is the candidate's: of
    all runs, or of those who go first (``is_among_first``).
    """
    return _canary_shares(trial) if trial.settings.canary else _guard_shares(trial)


def arms_of(trial: TrialState) -> list[tuple[int, str, float]]:
    """(version, arm, share) of every arm beside the live one, as ``assign`` takes them."""
    first, second = shares_of(trial)
    of_first = (trial.tried, CANDIDATE_ARM) if trial.settings.canary else (trial.control, CONTROL_ARM)
    found = [(*of_first, first), (trial.best, BEST_ARM, second)]
    return [(version, arm, round(share, 6)) for version, arm, share in found if share > 0.0]


def stage_of(trial: TrialState) -> int:
    """Of the canary's plan: ``MIN_OWN_EPISODES`` finished episodes of the version lead to the next one, and doubt one
    back. A replay that says nothing against the version spares it the first one.
    """
    spared = trial.replayed is not None and not suspicion.of_growth(trial.replayed)
    reached = min(trial.runs.own // MIN_OWN_EPISODES + spared, max(len(trial.settings.plan), 1) - 1)
    return max(0, reached - bool(suspicion.doubts(trial)))


def is_among_first(trial: TrialState) -> bool:
    """Whether only those who go first may get the version on trial."""
    return trial.settings.canary and bool(trial.settings.first) and trial.on_trial and stage_of(trial) == 0


def _canary_shares(trial: TrialState) -> tuple[float, float]:
    s, apart = trial.settings, trial.control != trial.best
    share = FIRST_SHARE if is_among_first(trial) else (s.plan or [s.share])[stage_of(trial)]
    if _is_silent(trial) and share:
        return min(share, 1.0 - SILENT_SHARE), s.holdout * BEST_PART if apart else 0.0
    share = share if trial.on_trial else 0.0
    # the accepted version keeps at least as many: it is what both others are compared with
    kept = min(s.holdout * BEST_PART, (1.0 - share) / 2.0) if apart else 0.0
    most = (1.0 - share) / 2.0 - kept
    suspected = max(suspicion.by_best(trial), suspicion.by_slide(trial))
    return share, kept + most * suspected if apart and s.holdout else 0.0


def _guard_shares(trial: TrialState) -> tuple[float, float]:
    holdout, apart = trial.settings.holdout, trial.control != trial.best
    kept = holdout * BEST_PART if apart else 0.0
    if _is_silent(trial) and holdout:
        return SILENT_SHARE - kept, kept
    if not holdout or not (trial.on_trial or apart):
        return 0.0, 0.0
    doubt = _doubt(trial)
    held = holdout if apart else holdout * doubt
    if trial.on_trial and trial.runs.own < YOUNG_EPISODES and trial.replayed is None:
        held = max(held, YOUNG_SHARE * max(doubt, 0.5))
    room = max(MOST_SHARE - held, 0.0)
    first = _suspected(trial) if trial.on_trial else 0.0
    second = suspicion.by_best(trial)
    if not apart:
        return held + room * max(first, second, suspicion.by_rare(trial)), 0.0
    if not trial.on_trial:
        return 0.0, held * doubt + room * second
    if first + second > 1.0:
        first, second = first / (first + second), second / (first + second)
    first = max(first, min(suspicion.by_rare(trial), 1.0 - second))
    second = max(second, min(suspicion.by_slide(trial), 1.0 - first))
    return held - kept + room * first, kept * doubt + room * second


def _suspected(trial: TrialState) -> float:
    """Beside the control."""
    if trial.silent:
        return 1.0
    seen = trial.evidence
    return max(
        suspicion.by_rewards(seen.worse),
        suspicion.of_growth(seen.hung.growth()),
        suspicion.by_group(trial, best=False),
        suspicion.by_guard(trial),
        suspicion.by_replay(trial),
    )


def _is_silent(trial: TrialState) -> bool:
    return trial.silent and trial.on_trial and not trial.runs.own_late


def _doubt(trial: TrialState) -> float:
    """Part of the best version's share that it keeps: less, the more the rewards, or those of held-out runs, say that
    it was beaten.
    """
    growth, ahead = trial.evidence.better_best.growth(), trial.ahead
    return 0.25 if growth >= 10.0 or ahead >= 3.0 else 0.5 if growth >= 3.0 or ahead >= 2.0 else 1.0
