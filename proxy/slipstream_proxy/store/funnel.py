"""The numbers behind "why is there no step yet"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream_proxy.store.codec import load
from slipstream_proxy.store.counts import missing_rewards, untrainable_calls
from slipstream_proxy.store.driver import IN, Tx
from slipstream_proxy.store.pace import Agent, Pace
from slipstream_proxy.store.values import Rules

NEAR_ZERO, SMALL_KL = 0.01, 1e-4
"""Share of its target below which a step's KL is near zero; the same in nats a token, for a step without a target."""
RECENT = 16
"""Groups, and steps, that count as recent."""
RATE_SECONDS = 600.0
"""Seconds over which the judge's rate is measured."""


class Forming(NamedTuple):
    groups: int
    episodes: int
    oldest: float | None
    """When its first episode ended."""


class GroupOutcome(NamedTuple):
    """Rewards of one complete group."""

    low: float
    high: float


class FunnelCounts(NamedTuple):
    """Times are seconds since the epoch."""

    calls: int
    trained_calls: int
    """Calls that asked for a trained model."""
    train_episodes: int
    open_episodes: int
    next_end: float | None
    """When the first of the open episodes ends, if no call comes."""
    without_task: int
    """Done episodes that no group takes because they have no task."""
    forming: Forming
    evaluating: Forming
    missing: dict[str, int]
    """Reward name → episodes of complete groups without it."""
    to_judge: int
    """Complete groups with an episode that the judge has not scored."""
    oldest_to_judge: float | None
    judged: int
    """Episodes that the judge scored in the last ``RATE_SECONDS``."""
    parked: int
    ready: int
    leased: int
    lost: dict[tuple[str, str], int]
    """(stale or dropped, cause) → groups."""
    outcomes: list[GroupOutcome]
    """Outcomes of the ``RECENT`` latest complete groups that have all rewards."""
    best: float | None
    """The highest training reward ever."""
    trained: int
    """Batches."""
    last_skipped: str | None
    """Why the trainer skipped its latest batch; None: it trained on it."""
    kls: list[float]
    """The KL of each of the latest steps. Below 1, a step was near zero."""
    """KL of the latest steps, newest first."""
    untrainable: dict[str, int]
    orphans: int
    """Episodes that have rewards and no calls."""


def _forming(tx: Tx, split: str) -> Forming:
    sql = """SELECT count(*), coalesce(sum(n), 0), min(created) FROM t_groups
        WHERE state = 'forming' AND kind <> 'window' AND split = ?"""
    ((groups, episodes, oldest),) = tx.all(sql, (split,))
    return Forming(int(groups), int(episodes), oldest)


def _next_end(tx: Tx, pace: Pace) -> float | None:
    rows = tx.all("SELECT key, model, untagged, last_end FROM t_episodes WHERE state = 'open'")
    ends = (end + pace.idle_after(Agent(key, model), untagged=untagged) for key, model, untagged, end in rows)
    return min(ends, default=None)


def _without_task(tx: Tx, rules: Rules) -> int:
    if rules.ungrouped:
        return 0
    sql = "SELECT count(*) FROM t_episodes WHERE state = 'done' AND NOT grouped AND trained_calls > 0"
    return int(tx.all(sql)[0][0])


def _to_judge(tx: Tx, name: str, now: float) -> tuple[int, float | None, int]:
    sql = f"""SELECT count(*), min(completed) FROM t_groups WHERE kind = 'task' AND NOT parked
        AND state IN ('waiting_reward', 'eval') AND id IN (SELECT grp FROM t_episodes WHERE grp IS NOT NULL
        AND eid NOT IN (SELECT eid FROM t_rewards WHERE call IS NULL AND name {IN}))"""
    ((groups, oldest),) = tx.all(sql, ([name],))
    sql = "SELECT count(DISTINCT eid) FROM t_rewards WHERE source = 'judge' AND ts > ?"
    return int(groups), oldest, int(tx.all(sql, (now - RATE_SECONDS,))[0][0])


def _outcomes(tx: Tx) -> list[GroupOutcome]:
    sql = f"""SELECT min(e.reward), max(e.reward) FROM t_episodes e JOIN (SELECT id, completed FROM t_groups
        WHERE split = 'train' AND kind <> 'window' AND state IN ('ready', 'leased', 'trained', 'skipped')
        ORDER BY completed DESC LIMIT {RECENT}) g ON e.grp = g.id WHERE e.reward IS NOT NULL GROUP BY g.id"""
    return [GroupOutcome(*row) for row in tx.all(sql)]


def _kls(tx: Tx) -> list[float]:
    """KL of the latest steps, each in units of what counts as near zero: a hundredth of the step's own target."""
    sql = "SELECT data FROM t_events WHERE kind = 'step' ORDER BY id DESC LIMIT 3"
    found = [(d.get("kl"), d.get("kl_target")) for d in (load(data) for (data,) in tx.all(sql))]
    limits = [(kl, NEAR_ZERO * t if isinstance(t, float) and t > 0 else SMALL_KL) for kl, t in found]
    return [abs(kl) / limit for kl, limit in limits if isinstance(kl, int | float)]


def _last_skipped(tx: Tx) -> str | None:
    sql = "SELECT state, reason FROM t_batches WHERE state IN ('trained', 'skipped') ORDER BY created DESC LIMIT 1"
    found = tx.all(sql)
    return found[0][1] or "no reason given" if found and found[0][0] == "skipped" else None


def funnel_counts(
    tx: Tx, rules: Rules, pace: Pace, tables: Sequence[str], judge_name: str, orphans: int, now: float
) -> FunnelCounts:
    """``tables``: those of calls. ``judge_name``: the reward name that the judge writes."""
    sql = """SELECT coalesce(sum(calls), 0), coalesce(sum(trained_calls), 0),
        coalesce(sum(CASE WHEN split = 'train' THEN 1 ELSE 0 END), 0),
        coalesce(sum(CASE WHEN state = 'open' THEN 1 ELSE 0 END), 0),
        max(CASE WHEN split = 'train' THEN reward END)
        FROM t_episodes WHERE state <> 'deleted'"""
    ((calls, trained_calls, train_episodes, open_episodes, best),) = tx.all(sql)
    sql = (
        "SELECT CASE WHEN parked THEN 'parked' ELSE state END, count(*) FROM t_groups WHERE kind <> 'window' GROUP BY 1"
    )
    states: dict[str, int] = dict(tx.all(sql))
    sql = """SELECT state, coalesce(cause, 'unknown'), count(*) FROM t_groups WHERE kind <> 'window'
        AND state IN ('stale', 'dropped') GROUP BY 1, 2"""
    lost = {(state, cause): int(count) for state, cause, count in tx.all(sql)}
    to_judge, oldest_to_judge, judged = _to_judge(tx, judge_name, now)
    trained = "SELECT count(*) FROM t_batches WHERE state = 'trained'"
    return FunnelCounts(
        calls=int(calls),
        trained_calls=int(trained_calls),
        train_episodes=int(train_episodes),
        open_episodes=int(open_episodes),
        next_end=_next_end(tx, pace),
        without_task=_without_task(tx, rules),
        forming=_forming(tx, "train"),
        evaluating=_forming(tx, "eval"),
        missing=missing_rewards(tx, rules),
        to_judge=to_judge,
        oldest_to_judge=oldest_to_judge,
        judged=judged,
        parked=states.get("parked", 0),
        ready=states.get("ready", 0),
        leased=states.get("leased", 0),
        lost=lost,
        outcomes=_outcomes(tx),
        best=best,
        trained=int(tx.all(trained)[0][0]),
        last_skipped=_last_skipped(tx),
        kls=_kls(tx),
        untrainable=untrainable_calls(tx, tables),
        orphans=orphans,
    )
