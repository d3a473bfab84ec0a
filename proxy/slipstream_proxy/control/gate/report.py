"""What people see of a trial: the same numbers that decide, and why there is no verdict yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slipstream.contract import GateReport
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.gate.rules import Decision
from slipstream_proxy.control.gate.trial import OWN, GateTrial

SOON = 8
"""Finished episodes before the pace of the evidence says how long it will take."""
MANY = 0.5
"""Share of rewards outside the declared range above which they say too little."""


def report_of(
    trial: GateTrial,
    names: Mapping[int, str],
    decision: Decision = Decision.UNDECIDED,
    *,
    manual: bool = False,
    waiting: Sequence[str] = (),
) -> GateReport:
    """``names``: of the versions that have a part. ``waiting``: newer versions that are not tried yet."""
    worse, best = trial.worse, trial.worse_best
    span = trial.scale.span or 1.0
    control_share, best_share = trial.shares()
    if trial.settings.canary:
        control_share = 1.0 - control_share if trial.on_trial else 0.0
    rolled = decision in (Decision.ROLLBACK, Decision.ROLLBACK_BEST)
    by_best = decision is Decision.ROLLBACK_BEST or (rolled and trial.shown_by_best)
    difference, lower, upper = interval(trial, of_best=by_best)
    shown = best if by_best else worse
    left, reason, fix = outlook(trial, names, manual=manual)
    return GateReport(
        decision="rollback" if rolled else "accept" if decision is Decision.ACCEPT else "undecided",
        control=names.get(trial.best if by_best else trial.control, ""),
        best=names.get(trial.best, ""),
        difference=scaled(difference, span),
        lower=scaled(lower, span) if difference is not None else None,
        upper=scaled(upper, span) if difference is not None else None,
        trial_episodes=shown.n_tested,
        control_episodes=shown.n_reference,
        evidence=round(min(worse.wealth + best.wealth, 1e9), 4),
        threshold=1.0 / trial.settings.alpha,
        drift_difference=scaled(best.difference(), span) if trial.tried != trial.best else None,
        drift_evidence=round(min(best.wealth, 1e9), 4),
        control_share=round(control_share, 4),
        best_share=round(best_share, 4),
        episodes_left=left if decision is Decision.UNDECIDED else None,
        reason=reason if decision is Decision.UNDECIDED else verdict_reason(trial, names, decision),
        fix=fix if decision is Decision.UNDECIDED else None,
        waiting=list(waiting),
    )


def interval(trial: GateTrial, *, of_best: bool) -> tuple[float | None, float, float]:
    """→ (difference, least, most) in the scale's units: of what is on trial and the control, or the best version.

    Where control and best are one version, both detectors speak of it, and the one that is surer is shown.
    """
    alpha, worse, best = trial.settings.alpha, trial.worse, trial.worse_best
    if of_best or (trial.control == trial.best and best.wealth > worse.wealth):
        better, worse, best = trial.better_best, best, worse
    else:
        better = trial.better
    difference, lower, upper = worse.difference(), better.limit(alpha), worse.limit(alpha, best.wealth)
    return None if difference is None else min(max(difference, lower), upper), lower, upper


def verdict_reason(trial: GateTrial, names: Mapping[int, str], decision: Decision) -> str:
    """Why the gate decided so, in a sentence for the adapter's state."""
    if decision is Decision.ROLLBACK:
        least = trial.best if trial.shown_by_best else trial.control
        return f"worse than {names.get(least, '')}"
    if decision is Decision.ROLLBACK_BEST:
        return f"worse than {names.get(trial.best, '')}: small losses have added up"
    if trial.better.wealth >= 1.0 / trial.settings.alpha:
        return f"better than {names.get(trial.control, '')}"
    return f"nothing speaks against it after {trial.since} episodes"


def outlook(trial: GateTrial, names: Mapping[int, str], *, manual: bool = False) -> tuple[int | None, str, str | None]:
    """→ (finished episodes on trial until a verdict is likely, why there is none yet, what a user can do)."""
    settings = trial.settings
    if not trial.on_trial and trial.control == trial.best:
        return None, "no adapter is on trial", None
    if manual:
        return None, "gate.mode is manual: a person decides", "slipstream adapters promote VERSION"
    if not settings.canary and not settings.holdout:
        return None, "gate.holdout is 0: there is nothing to compare with", "set gate.holdout, for example to 0.1"
    if settings.canary and not settings.share:
        return None, "gate.share is 0: no episode gets the candidate", "set gate.share, for example to 0.1"
    if not trial.on_trial:
        share = trial.shares()[1]
        best = names.get(trial.best, "")
        return None, f"no adapter is on trial; {share:.0%} of new episodes still get {best}, to see a slow slide", None
    if not trial.scale.count:
        return None, "no finished episode has a reward yet", "post rewards, or set judge.model"
    if trial.scale.span <= 0.0 and len(trial.scale.ring) > SOON:
        text = f"nearly all rewards are {trial.scale.low:g}, so they cannot tell versions apart"
        return None, text, "post rewards of failed runs too, make the reward finer, or look at reward.weights"
    if trial.scale.outside > MANY * trial.scale.count and trial.scale.count > SOON:
        low, high = trial.scale.low, trial.scale.high
        text = f"{trial.scale.outside} of {trial.scale.count} rewards lie outside gate.reward_range [{low:g}, {high:g}]"
        return None, text, "declare the rewards' own range, or leave gate.reward_range out"
    detector = trial.worse if trial.worse.wealth >= trial.worse_best.wealth else trial.worse_best
    if not trial.worse.n_tested or not trial.worse.n_reference:
        arm = "the version on trial" if not trial.worse.n_tested else names.get(trial.control, "the control")
        share = trial.shares()[0]
        left = math.ceil(1.0 / max(share, 0.01)) if trial.worse.n_tested else None
        return left, f"no finished episode of {arm} has a reward yet", None
    if not trial.trusted():
        left = _until_rollback(trial, detector)
        text = "rewards are lower than the control's, but that may still be chance"
        return left, text, None
    left = max(settings.settle - trial.since, OWN - trial.own, 1)
    return left, f"nothing speaks against it; it is accepted after {settings.settle} episodes like that", None


def _until_rollback(trial: GateTrial, detector: BettingDetector) -> int | None:
    """Finished episodes at the evidence's own pace so far; None while it does not grow."""
    growth = math.log(max(detector.growth(), 1e-12))
    if detector.n_tested < SOON or growth <= 0.0:
        return None
    missing = math.log(1.0 / trial.settings.alpha / max(trial.worse.wealth + trial.worse_best.wealth, 1e-12))
    return max(math.ceil(missing / growth * detector.n_tested), 1)


def scaled(value: float | None, span: float) -> float | None:
    return None if value is None else float(f"{value * span:.6g}")
