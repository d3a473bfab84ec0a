"""What people see of a trial: the same numbers that decide, why there is no verdict yet, and how the evidence moved:
enough readings for a chart, however many episodes it saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import JsonValue, TypeAdapter

from slipstream.contract import GateGroup, GateGuard, GateRatings, GateReading, GateReport
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.gate.groups import SHOWN_RUNS
from slipstream_proxy.control.gate.guards import WAITING_ERRORS, Guard
from slipstream_proxy.control.gate.rules import Decision
from slipstream_proxy.control.gate.scale import COARSE_REWARDS
from slipstream_proxy.control.gate.scale import WINDOW_REWARDS as COARSE_WINDOW
from slipstream_proxy.control.gate.shares import is_among_first, shares_of, stage_of
from slipstream_proxy.control.gate.state import MIN_SCALE_REWARDS
from slipstream_proxy.control.gate.suspicion import (
    MAX_SLIDE,
    MIN_OWN_EPISODES,
    alarm,
    doubted_group,
    doubted_guard,
    doubts,
    is_calm,
    is_calm_aside,
    is_frozen,
    lacks_groups,
    may_lose_half,
    may_slide,
    missed_loss,
)
from slipstream_proxy.control.gate.trial import GateTrial
from slipstream_proxy.control.gate.verdict import evidence_against, is_shown_by_best, own_difference, worst_group
from slipstream_proxy.json_types import JsonObject

MIN_PACE_EPISODES = 8
"""Finished episodes before the pace of the evidence says how long it will take."""
MANY_LATE = 0.2
"""Share of the runs on trial that timed out above which a verdict says so."""
MAX_GROUPS_SHOWN = 8
"""Groups in a report."""
MAX_OUTSIDE_SHARE = 0.5
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
    span = trial.scale.span or 1.0
    share, best_share = shares_of(trial)
    control_share = share
    if trial.settings.canary:
        control_share = 1.0 - share if trial.on_trial else 0.0
    rolled = decision in (Decision.ROLLBACK, Decision.ROLLBACK_BEST, Decision.ROLLBACK_GROUP)
    by_best = decision is Decision.ROLLBACK_BEST or (rolled and is_shown_by_best(trial))
    left, reason, fix = outlook(trial, names, manual=manual)
    canary = trial.settings.canary and trial.on_trial and not manual and decision is Decision.UNDECIDED
    return GateReport(
        decision="rollback" if rolled else "accept" if decision is Decision.ACCEPT else "undecided",
        control=names.get(trial.best if by_best else trial.control, ""),
        best=names.get(trial.best, ""),
        own_episodes=trial.runs.own,
        own_difference=scaled(own_difference(trial), span),
        timed_out=trial.runs.own_late,
        threshold=1.0 / trial.settings.alpha,
        control_share=round(control_share, 4),
        best_share=round(best_share, 4),
        trial_share=round(share, 4) if canary else 0.0,
        stage=stage_of(trial) + 1 if canary and trial.settings.plan else None,
        gets=gets(trial, names) if canary else "",
        episodes_left=left if decision is Decision.UNDECIDED else None,
        reason=reason if decision is Decision.UNDECIDED else verdict_reason(trial, names, decision),
        fix=fix if decision is Decision.UNDECIDED else None,
        waiting=list(waiting),
        groups=groups_of(trial, of_best=by_best),
        guards=guards_of(trial),
        ratings=ratings_of(trial),
        missed=scaled(_missed(trial), span),
        best_episodes=trial.evidence.worse_best.n_reference if trial.control != trial.best else 0,
        **_figures(trial, of_best=by_best),
    )


def _figures(trial: GateTrial, *, of_best: bool) -> JsonObject:
    """What a report and a reading have alike. ``of_best``: beside the best version, not the control."""
    span = trial.scale.span or 1.0
    difference, lower, upper = interval(trial, of_best=of_best)
    shown = trial.evidence.worse_best if of_best else trial.evidence.worse
    return {
        "trial_episodes": shown.n_tested,
        "control_episodes": shown.n_reference,
        "difference": scaled(difference, span),
        "lower": scaled(lower, span) if difference is not None else None,
        "upper": scaled(upper, span) if difference is not None else None,
        "evidence": round(min(evidence_against(trial), 1e9), 4),
        "drift_difference": scaled(trial.evidence.worse_best.difference(), span) if trial.tried != trial.best else None,
        "drift_evidence": round(min(trial.evidence.against(best=True), 1e9), 4),
    }


def gets(trial: GateTrial, names: Mapping[int, str]) -> str:
    """Who gets the canary now, and what leads to the next stage of its plan."""
    plan, name = trial.settings.plan, names.get(trial.tried, "the version on trial")
    share, of = f"{100.0 * shares_of(trial)[0]:.4g}%", "new runs"
    if is_among_first(trial):
        of = f"the new runs of {', '.join(trial.settings.first)}, and no others,"
    text = f"{share} of {of} get {name}"
    if not plan:
        return text
    text += f" (stage {stage_of(trial) + 1} of {len(plan)})"
    if doubts(trial):
        return f"{text}: it is held back as long as {' and '.join(doubts(trial))}"
    if stage_of(trial) + 1 == len(plan):
        return f"{text}: a verdict comes next"
    more = MIN_OWN_EPISODES - trial.runs.own % MIN_OWN_EPISODES
    return f"{text}: {100.0 * plan[stage_of(trial) + 1]:.4g}% after {more} more of its runs without suspicion"


def guards_of(trial: GateTrial) -> list[GateGuard]:
    found = []
    for guard in trial.evidence.guards.guards:
        control, tested = guard.means() or (None, None)
        found.append(
            GateGuard(
                name=guard.name,
                bad=guard.bad,
                control=control,
                trial=tested,
                trial_episodes=guard.detector.n_tested,
                control_episodes=guard.detector.n_reference,
                evidence=round(min(guard.detector.wealth, 1e9), 4),
            )
        )
    return found


def ratings_of(trial: GateTrial) -> GateRatings | None:
    shares = trial.evidence.ratings.shares()
    if shares is None or not trial.deadline.sparse:
        return None
    control, _, tested, _ = trial.evidence.ratings.counts
    evidence = round(min(trial.evidence.ratings.evidence(), 1e9), 4)
    found = {"control_episodes": control, "trial_episodes": tested, "evidence": evidence}
    return GateRatings(control=round(shares[0], 4), trial=round(shares[1], 4), **found)


def _missed(trial: GateTrial) -> float | None:
    """As ``GateReport.missed``, in the scale's units."""
    missed = missed_loss(trial)
    return max(missed, 0.0) if missed < 1.0 else None


def groups_of(trial: GateTrial, *, of_best: bool) -> list[GateGroup]:
    """The groups that most speaks against, beside the same version as the report's difference."""
    span = trial.scale.span or 1.0
    found = [
        GateGroup(
            name=slot.name,
            difference=scaled(detector.difference(), span),
            trial_episodes=detector.n_tested,
            control_episodes=detector.n_reference,
            evidence=round(min(detector.wealth, 1e9), 4),
        )
        for slot in trial.evidence.groups.slots.values()
        for detector in (slot.detectors[of_best],)
        if detector.n_tested or detector.n_reference
    ]
    return sorted(found, key=lambda group: -group.evidence)[:MAX_GROUPS_SHOWN]


def interval(trial: GateTrial, *, of_best: bool) -> tuple[float | None, float, float]:
    """→ (difference, least, most) in the scale's units: of what is on trial and the control, or the best version.

    Where control and best are one version, both detectors speak of it, and the one that is surer is shown. With a
    canary only the first has runs of both sides: its candidate is never compared with the best version.
    """
    alpha, worse, best = trial.settings.alpha, trial.evidence.worse, trial.evidence.worse_best
    surer = best.wealth > worse.wealth and best.difference() is not None
    if of_best or (trial.control == trial.best and surer):
        better, worse, best = trial.evidence.better_best, best, worse
    else:
        better = trial.evidence.better
    difference, lower, upper = worse.difference(), better.limit(alpha), worse.limit(alpha, best.wealth)
    return None if difference is None else min(max(difference, lower), upper), lower, upper


def verdict_reason(trial: GateTrial, names: Mapping[int, str], decision: Decision) -> str:
    """Why the gate decided so, in a sentence for the adapter's state."""
    if decision is Decision.ROLLBACK and (guard := alarm(trial)) is not None and not _by_reward(trial):
        return f"a guard is worse than with {names.get(trial.control, '')}: {guard_text(guard)}"
    if decision in (Decision.ROLLBACK, Decision.ROLLBACK_GROUP):
        least = trial.best if is_shown_by_best(trial) else trial.control
        return f"worse than {names.get(least, '')}{_for_group(trial)}{_late(trial)}"
    if decision is Decision.ROLLBACK_BEST:
        return f"worse than {names.get(trial.best, '')}{_for_group(trial) or ': small losses have added up'}"
    if trial.evidence.better.wealth >= 1.0 / trial.settings.alpha:
        return f"better than {names.get(trial.control, '')}{_said(trial)}"
    missed = scaled(_missed(trial), trial.scale.span or 1.0)
    seen = "" if missed is None else f"; a loss above {missed:.2g} would have been detected with 95 % probability"
    together = f", of {trial.undecided} versions together" if trial.undecided > 1 else ""
    after = f"after {trial.runs.since} episodes{together}"
    return f"nothing speaks against it {after}{seen}{_rated(trial, names)}{_said(trial)}"


def _by_reward(trial: GateTrial) -> bool:
    return evidence_against(trial) >= 1.0 / trial.settings.alpha


def guard_text(guard: Guard) -> str:
    """How a side measure has changed."""
    control, tested = guard.means() or (0.0, 0.0)
    before, now = f"{control:.3g}", f"{tested:.3g}"
    moved = (
        f"is {now} with both" if before == now else f"{'rose' if tested > control else 'fell'} from {before} to {now}"
    )
    return f"{guard.name} {moved} (mean of {guard.detector.n_tested:,} runs)"


def _rated(trial: GateTrial, names: Mapping[int, str]) -> str:
    """How often runs are rated, where that differs by arm; else nothing."""
    if (found := ratings_of(trial)) is None or found.evidence < 1.0 / trial.settings.alpha:
        return ""
    own = f"rated {found.trial:.0%} of {found.trial_episodes:,} runs on trial"
    return f"; {own}, {names.get(trial.control, 'the control')} {found.control:.0%} of {found.control_episodes:,}"


def _said(trial: GateTrial) -> str:
    """What it is worse for, where that takes nothing back (``gate.group_verdict``, ``gate.guard_action``)."""
    if trial.kept_from:
        return f", but not for {', '.join(sorted(trial.kept_from))}: it was taken back for these runs alone"
    if trial.settings.guard_action == "say" and (guard := alarm(trial)) is not None:
        return f", but {guard_text(guard)}{_said_of_group(trial)}"
    return _said_of_group(trial)


def _said_of_group(trial: GateTrial) -> str:
    if trial.settings.by_group:
        return ""
    best = trial.evidence.groups.wealth(best=True) > trial.evidence.groups.wealth(best=False)
    found = trial.evidence.groups.worst(best=best)
    if found is None or trial.evidence.groups.wealth(best=best) < 1.0 / trial.settings.alpha:
        return ""
    return f", but it is worse{_group_text(trial, *found)}"


def _for_group(trial: GateTrial) -> str:
    """Which group of runs it is worse for, where that is what speaks against it."""
    found = worst_group(trial)
    return "" if found is None else _group_text(trial, *found)


def _group_text(trial: GateTrial, name: str, detector: BettingDetector) -> str:
    difference = scaled(detector.difference(), trial.scale.span or 1.0)
    return f" for {name}: {difference or 0.0:+.3g} over {detector.n_tested:,} of its runs"


def _late(trial: GateTrial) -> str:
    """How many runs on trial failed by their deadline, where they are many."""
    if trial.runs.late < MANY_LATE * trial.runs.since or not trial.runs.late:
        return ""
    after, runs = trial.deadline.seconds(trial.tried), trial.runs
    return f": {runs.late:,} of {runs.since:,} runs on trial timed out (no reward {after:,.0f} s after their start)"


def outlook(trial: GateTrial, names: Mapping[int, str], *, manual: bool = False) -> tuple[int | None, str, str | None]:
    """→ (new runs, of all versions, until a verdict is likely, why there is none yet, what a user can do)."""
    settings = trial.settings
    if not trial.on_trial and trial.control == trial.best:
        return None, "no adapter is on trial", None
    if manual:
        return None, "gate.mode is manual: a person decides", "slipstream adapters promote VERSION"
    if not settings.canary and not settings.holdout:
        return None, "gate.holdout is 0: there is nothing to compare with", "set gate.holdout, for example to 0.1"
    if settings.canary and not (settings.share or settings.plan):
        return None, "gate.share is 0: no episode gets the candidate", "set gate.share, for example to 0.1"
    if not trial.on_trial:
        share = shares_of(trial)[1]
        best = names.get(trial.best, "")
        return None, f"no adapter is on trial; {share:.0%} of new episodes still get {best}, to see a slow slide", None
    name = names.get(trial.tried, "the version on trial")
    if is_frozen(trial):
        guard = None if trial.frozen_by_hand else alarm(trial)
        why = " by hand" if guard is None else f": {guard_text(guard)}"
        text = f"frozen{why}. It is not accepted, and newer versions wait, until a person decides"
        ways = ", ".join(f"`slipstream adapters {way} {name}`" for way in ("promote", "unfreeze", "demote"))
        return None, text, f"look at `slipstream episodes --adapter {name}`, then one of {ways}"
    if trial.unsettled:
        return None, _unsettled(trial), None
    if not trial.scale.count:
        return None, "no finished episode has a reward yet", "post rewards, or set judge.model"
    if trial.scale.span <= 0.0 and len(trial.scale.ring) > MIN_PACE_EPISODES:
        text = f"nearly all rewards are {trial.scale.low:g}, so they cannot tell versions apart"
        return None, text, "post rewards of failed runs too, make the reward finer, or look at reward.weights"
    if trial.scale.outside > MAX_OUTSIDE_SHARE * trial.scale.count and trial.scale.count > MIN_PACE_EPISODES:
        low, high = trial.scale.low, trial.scale.high
        text = f"{trial.scale.outside} of {trial.scale.count} rewards lie outside gate.reward_range [{low:g}, {high:g}]"
        return None, text, "declare the rewards' own range, or leave gate.reward_range out"
    if trial.runs.own == trial.runs.own_late:
        text = (
            f"no run of {name} counts yet: runs count as they began, once each has its reward or its deadline is over"
        )
        return None, text + (f"; {trial.runs.own_late:,} timed out" if trial.runs.own_late else ""), None
    counted = _counted(trial, name)
    if not trial.evidence.worse.n_reference:
        share = shares_of(trial)[0]
        missing = math.ceil(1.0 / max(1.0 - share if settings.canary else share, 0.01))
        return missing, f"no run of {names.get(trial.control, 'the control')} has a reward yet ({counted})", None
    guard = doubted_guard(trial) or (None if is_calm_aside(trial) else trial.evidence.guards.suspect())
    if guard is not None:
        seems = guard.errors() < WAITING_ERRORS
        why = (
            "which is worse, but that may still be chance" if seems else "and that it is much worse is not excluded yet"
        )
        return None, f"{guard_text(guard)}, {why} ({counted})", None
    if not is_calm(trial):
        return _suspected(trial, names, counted)
    return _calm(trial, names, counted)


def _calm(trial: GateTrial, names: Mapping[int, str], counted: str) -> tuple[int | None, str, str | None]:
    """As ``outlook``, where nothing speaks against what is on trial."""
    settings, name = trial.settings, names.get(trial.tried, "the version on trial")
    if trial.scale.is_coarse():
        low, high = trial.scale.low, trial.scale.high
        where = f"a small part of the range [{low:g}, {high:g}]"
        text = f"the newest {COARSE_REWARDS} rewards lie in {where}: a loss looks small"
        fix = f"wait until {COARSE_WINDOW:,} rewards of the new kind have come, or declare gate.reward_range"
        return None, f"{text} in it, so nothing is accepted ({counted})", fix
    also = _rated(trial, names)
    asked: str | None = None
    if also:
        asked = (
            f'look at `slipstream episodes --adapter {name}`: if failed runs go unrated, set reward.missing = "failure"'
        )
    if best_share := shares_of(trial)[1]:
        runs = trial.evidence.worse_best.n_reference
        also += f"; {names.get(trial.best, '')} has {best_share:.0%} of new runs ({runs:,} so far), to see a slow slide"
    if trial.runs.since >= settings.settle and (why := _waits(trial, names)):
        return None, f"nothing speaks against it{also}, but {why} ({counted})", asked
    left = max(settings.settle - trial.runs.since, MIN_OWN_EPISODES - trial.runs.own, 1)
    after = f"it is accepted after {settings.settle} episodes on trial, at least {MIN_OWN_EPISODES} of them its own"
    return _new_runs(trial, left), f"nothing speaks against it{_said(trial)}{also}; {after} ({counted})", asked


def _waits(trial: GateTrial, names: Mapping[int, str]) -> str:
    """Which loss it may still have, where that keeps it from being accepted."""
    span = trial.scale.span or 1.0
    if may_lose_half(trial):
        return f"a loss of half of what {names.get(trial.control, 'the control')} gets is not excluded yet"
    if may_slide(trial):
        most = MAX_SLIDE * span
        return f"a loss of more than {most:.2g} beside {names.get(trial.best, '')} is not excluded yet"
    if lacks_groups(trial):
        return f"some group has had fewer than {SHOWN_RUNS} of its runs"
    return ""


def _new_runs(trial: GateTrial, tested: int) -> int | None:
    """In how many new runs the version on trial has so many of its own. None: only those who go first get it, and
    nobody knows how many of the runs are theirs.
    """
    if is_among_first(trial):
        return None
    first, second = shares_of(trial)
    if not trial.settings.canary:
        return math.ceil(tested / max(1.0 - first - second, 0.01))
    needed, until_next = 0.0, MIN_OWN_EPISODES - trial.runs.own % MIN_OWN_EPISODES
    for share in () if doubts(trial) else trial.settings.plan[stage_of(trial) + 1 :]:
        here = min(tested, until_next)
        needed, tested = needed + here / max(first, 0.001), tested - here
        first, until_next = share, MIN_OWN_EPISODES
    return math.ceil(needed + tested / max(first, 0.001))


def _suspected(trial: GateTrial, names: Mapping[int, str], counted: str) -> tuple[int | None, str, str | None]:
    """As ``outlook``, where something speaks against what is served."""
    other = f"{names.get(trial.best if is_shown_by_best(trial) else trial.control, 'the control')}'s"
    detector = max((trial.evidence.worse, trial.evidence.worse_best), key=lambda bets: bets.wealth)
    if (found := worst_group(trial)) is not None:
        name, detector = found
        text = f"rewards for {name} are lower than {other}, but that may still be chance"
        return _until_rollback(trial, detector), f"{text} ({detector.n_tested:,} of its runs)", None
    if (found := doubted_group(trial)) is not None:
        name, of_group = found
        text = f"rewards for {name} look lower, but that may still be chance ({of_group.n_tested:,} of its runs)"
        return None, f"{text}: an acceptance waits for more of them ({counted})", None
    text = f"rewards are lower than {other}, but that may still be chance ({counted})"
    return _until_rollback(trial, detector), text, None


def _unsettled(trial: GateTrial) -> str:
    if trial.watch.doubt:
        return "rewards are unlike all before: there is no verdict until it is clear whether their scale has changed"
    low, high, count = trial.scale.low, trial.scale.high, trial.scale.count
    now = (
        f"so far [{low:g}, {high:g}], {count} of {MIN_SCALE_REWARDS} rewards"
        if count
        else f"0 of {MIN_SCALE_REWARDS} rewards so far"
    )
    return f"the scale of rewards has changed: the evidence begins again on the new one ({now})"


def _counted(trial: GateTrial, name: str) -> str:
    """Whose runs the difference is of: the evidence lasts over versions."""
    own = f"{trial.runs.own:,} {'run' if trial.runs.own == 1 else 'runs'} of {name}"
    late = f", {trial.runs.own_late:,} of them timed out" if trial.runs.own_late else ""
    if trial.runs.since <= trial.runs.own:
        return f"{own}{late}"
    return f"{own}{late}; the difference is of all {trial.runs.since:,} runs on trial since the last verdict"


def _until_rollback(trial: GateTrial, detector: BettingDetector) -> int | None:
    """New runs at the evidence's own pace so far; None while it does not grow."""
    growth = math.log(max(detector.growth(), 1e-12))
    if detector.n_tested < MIN_PACE_EPISODES or growth <= 0.0:
        return None
    missing = math.log(1.0 / trial.settings.alpha / max(evidence_against(trial), 1e-12))
    return _new_runs(trial, max(math.ceil(missing / growth * detector.n_tested), 1))


def scaled(value: float | None, span: float) -> float | None:
    return None if value is None else float(f"{value * span:.6g}")


MAX_READINGS = 320
"""Readings kept of a version."""
READINGS_TYPE = TypeAdapter(list[GateReading])


def reading_of(trial: GateTrial, outcome: int, at: float) -> GateReading | None:
    """What the gate sees after this outcome; None: nothing is compared."""
    if not trial.on_trial and trial.control == trial.best:
        return None
    return GateReading(outcome=outcome, at=at, **_figures(trial, of_best=False))


def last_reading(report: GateReport, before: Sequence[GateReading], at: float) -> GateReading | None:
    """What stands in the adapter's own report, as one more reading; None: the last one says the same."""
    fields = report.model_dump(include=set(GateReading.model_fields) - {"outcome", "at"})
    last = before[-1] if before else None
    if last is not None and fields == last.model_dump(exclude={"outcome", "at"}):
        return None
    return GateReading(outcome=last.outcome if last else 0, at=max(at, last.at if last else 0.0), **fields)


def joined(before: Sequence[GateReading], after: Sequence[GateReading]) -> list[GateReading]:
    """Of what was read twice (the gate goes back to what it kept, after a crash) the later reading counts."""
    first = after[0].outcome if after else None
    return thinned([*(r for r in before if first is None or r.outcome < first), *after])


def thinned(readings: list[GateReading]) -> list[GateReading]:
    """At most ``MAX_READINGS``, evenly over the outcomes, with the first and the last.

    Of each span of outcomes the first reading stays. A span is a power of two long, so that thinning again and again
    leaves the beginning as dense as the end.
    """
    if len(readings) <= MAX_READINGS:
        return readings
    span = 1
    while readings[-1].outcome - readings[0].outcome > span * MAX_READINGS // 2:
        span *= 2
    first: dict[int, GateReading] = {}
    for reading in readings[:-1]:
        first.setdefault(reading.outcome // span, reading)
    return [*first.values(), readings[-1]]


class GateHistory:
    """Readings that the store does not have yet, by version. Of one trained model."""

    def __init__(self) -> None:
        self.versions: dict[int, list[GateReading]] = {}

    def note(self, trial: GateTrial, outcome: int, at: float) -> None:
        if (reading := reading_of(trial, outcome, at)) is not None:
            readings = self.versions.setdefault(trial.tried, [])
            readings.append(reading)
            self.versions[trial.tried] = thinned(readings)

    def take(self) -> dict[int, list[GateReading]]:
        """What is to be stored now. It stays here until ``stored``: who asks meanwhile finds it."""
        return {version: list(readings) for version, readings in self.versions.items()}

    def stored(self, taken: Mapping[int, Sequence[GateReading]]) -> None:
        for version, readings in taken.items():
            rest = [r for r in self.versions.get(version, []) if r.outcome > readings[-1].outcome]
            if rest:
                self.versions[version] = rest
            else:
                self.versions.pop(version, None)


def dump_readings(readings: Sequence[GateReading]) -> dict[str, JsonValue]:
    return {"readings": [r.model_dump(mode="json", exclude_none=True) for r in readings]}


def load_readings(kept: Mapping[str, object] | None) -> list[GateReading]:
    """None, or what another version of this program wrote: no readings."""
    try:
        return READINGS_TYPE.validate_python(kept["readings"]) if kept is not None else []
    except (KeyError, ValueError):
        return []
