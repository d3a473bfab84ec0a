"""Causes that lie in the judge."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.contract import FunnelLine
from slipstream.settings.judge import NO_QUOTA, RESTORE_QUOTA
from slipstream_proxy.control.status.causes.surroundings import (
    BLOCKS,
    REMARK,
    RIGHT_JUDGE,
    SLOWS,
    SOON_S,
    Surroundings,
    is_in_trouble,
    sidecar_lines,
)
from slipstream_proxy.store.read.status import RATE_SECONDS, FunnelCounts
from slipstream_proxy.store.read.wording import plural, span


def judge_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    yield from sidecar_lines("judge", around, BLOCKS if around.config.judge.name in counts.missing else SLOWS)
    if not around.judge_expected:
        return
    if counts.to_judge:
        rate = counts.judged / (RATE_SECONDS / 60)
        lag = max(0.0, around.now - (counts.oldest_to_judge or around.now))
        text = (
            f"{plural(counts.to_judge, 'group waits', 'groups wait')} for the judge, the oldest for {span(lag)}; "
            f"it scores {rate:.1f} episodes a minute"
        )
        slow = lag > SOON_S and around.judge_error is None
        fix = "raise judge.concurrency, choose a faster judge.model, or lower judge.votes" if slow else None
        severity = SLOWS if slow else REMARK
        yield FunnelLine(stage="judge", cause="waiting", count=counts.to_judge, text=text, fix=fix, severity=severity)
        yield from _judge_fails(counts, around)
        if around.judge_budget is not None:
            setting, wait = around.judge_budget
            text = f"the judge's budget is spent ({setting}); it starts again in {span(wait)}"
            fix = f"raise {setting}, or choose a cheaper judge.model"
            severity = BLOCKS if wait > SOON_S and not (counts.ready or counts.leased) else SLOWS
            yield FunnelLine(stage="judge", cause="budget", count=round(wait), text=text, fix=fix, severity=severity)
        if around.judge_away and not is_in_trouble("judge", around):
            text = f"the judge has not asked for work for {span(around.judge_silence)}"
            fix = "start `slipstream judge` (or `slipstream up`), and see its log"
            wanted, silence = around.config.judge.name in around.config.reward.weights, round(around.judge_silence)
            severity = BLOCKS if wanted else SLOWS
            yield FunnelLine(stage="judge", cause="away", count=silence, text=text, fix=fix, severity=severity)
    if (found := around.judge_chance) is not None and around.judge_error is None:
        text = (
            f"the judge scores by chance: its votes on the same runs in another order agree by {found.value or 0:.2f} "
            f"over {plural(found.pairs, 'group', 'groups')} (1 is full agreement, 0 is chance)"
        )
        fix = "choose a larger judge.model, or post rewards; `slipstream judge eval` measures a judge"
        yield FunnelLine(stage="judge", cause="chance", count=found.pairs, text=text, fix=fix, severity=SLOWS)
    if counts.parked:
        text = f"{plural(counts.parked, 'group is', 'groups are')} parked: the judge failed too often"
        text += f" ({counts.failures['parked']})" if "parked" in counts.failures else ""
        fix = f"{RIGHT_JUDGE}; then `slipstream judge retry` hands them out again"
        wanted = around.config.judge.name in around.config.reward.weights
        stuck = wanted and not (counts.judged or counts.ready or counts.leased)
        severity = BLOCKS if stuck else SLOWS
        yield FunnelLine(stage="judge", cause="parked", count=counts.parked, text=text, fix=fix, severity=severity)


def _judge_fails(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    if around.judge_error is None or around.judge_budget is not None:
        return
    stuck = around.config.judge.name in around.config.reward.weights and not (counts.ready or counts.leased)
    text = f"the judge fails: {around.judge_error}"
    fix = f"{RIGHT_JUDGE}; waiting groups are tried again by themselves"
    if NO_QUOTA.search(around.judge_error):
        text = f"the judge's API has no quota left: {around.judge_error}"
        fix = RESTORE_QUOTA
    severity = BLOCKS if stuck else SLOWS
    yield FunnelLine(stage="judge", cause="failing", count=counts.to_judge, text=text, fix=fix, severity=severity)
