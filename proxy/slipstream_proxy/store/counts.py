"""Where things stand, in numbers (why there was no step yet: ``funnel.py``)."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.driver import IN, Tx
from slipstream_proxy.store.group_counts import GroupCounts, count_groups, totals
from slipstream_proxy.store.meta import STALE_RUNS, get_meta
from slipstream_proxy.store.tallies import Tallied
from slipstream_proxy.store.values import Rules


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def span(seconds: float) -> str:
    """In words: ``90 s``, ``12 min``, ``3 h``."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


class BatchCount(NamedTuple):
    """The trainer's batches of one state."""

    n: int
    newest: float
    """When the newest was leased, in seconds since the epoch."""


class StoreCounts(NamedTuple):
    """What one look at the store finds, whenever it is: nothing here depends on the time of day."""

    kept: Tallied
    groups: GroupCounts
    batches: dict[str, BatchCount]
    lags: list[float]
    """Seconds that each of the latest groups had waited for its rewards."""
    stale_runs: int


def store_counts(tx: Tx, kept: Tallied) -> StoreCounts:
    batches = {
        state: BatchCount(int(n), newest)
        for state, n, newest in tx.all("SELECT state, count(*), max(created) FROM t_batches GROUP BY state")
    }
    sql = """SELECT ready_at - completed FROM t_groups WHERE ready_at IS NOT NULL AND completed IS NOT NULL
        ORDER BY ready_at DESC LIMIT 20"""
    lags = [lag for (lag,) in tx.all(sql)]
    return StoreCounts(kept, count_groups(tx), batches, lags, int(get_meta(tx, STALE_RUNS) or 0))


def counts(found: StoreCounts, missing: dict[str, int], orphans: int, now: float) -> JsonObject:
    """What ``Statistics.counts`` answers. ``orphans``: episodes with rewards and no calls."""
    kept = found.kept
    return {
        "groups": found.groups.states(),
        "batches": {state: batch.n for state, batch in found.batches.items()},
        "episodes": totals((state, tally.n) for (state, *_), tally in kept.episodes.items()),
        "rewards": {source: tally.n for (source,), tally in kept.rewards.items()},
        "calls": int(sum(tally.x for tally in kept.episodes.values())),
        "untrainable": untrainable_calls(kept),
        "missing": missing,
        "orphans": orphans,
        "lost": found.groups.lost(),
        "stale_runs": found.stale_runs,
        "judging": _judging(found, now),
    }


def _judging(found: StoreCounts, now: float) -> dict[str, float]:
    """Groups that wait for rewards: how many, the oldest one's seconds, and the latest ones' (``lag``)."""
    waiting = [row for row in found.groups.of("waiting_reward") if not row.parked]
    oldest = min((row.completed for row in waiting if row.completed is not None), default=None)
    age = max(0.0, now - oldest) if oldest is not None else 0.0
    lag = sum(found.lags) / len(found.lags) if found.lags else 0.0
    return {"waiting": sum(row.n for row in waiting), "oldest": age, "lag": lag}


def untrainable_calls(kept: Tallied) -> dict[str, int]:
    """Reason → calls of trained models that cannot be trained on, the most frequent first."""
    found = totals((reason, tally.n) for (_, reason), tally in kept.untrainable.items())
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def waiting_groups(tx: Tx) -> list[str]:
    """Complete groups in which an episode lacks its reward."""
    return [group for (group,) in tx.all("SELECT id FROM t_groups WHERE state = 'waiting_reward'")]


def missing_rewards(tx: Tx, rules: Rules, groups: list[str]) -> dict[str, int]:
    """Weighted reward name → episodes of these groups that wait for it."""
    found = {}
    for name in rules.weights if groups else ():
        sql = f"""SELECT count(*) FROM t_episodes e WHERE e.reward IS NULL AND e.grp {IN}
            AND NOT EXISTS (SELECT 1 FROM t_rewards r WHERE r.eid = e.eid AND r.name = ?)"""
        if count := tx.all(sql, (groups, name))[0][0]:
            found[name] = count
    return found


def unweighted_rewards(tx: Tx, rules: Rules, groups: list[str]) -> dict[str, int]:
    """Name without a weight → episodes of these groups that have such a reward and wait for another name."""
    if not groups:
        return {}
    sql = f"""SELECT r.name, count(DISTINCT r.eid) FROM t_rewards r JOIN t_episodes e ON e.eid = r.eid
        WHERE e.reward IS NULL AND e.grp {IN} GROUP BY 1 ORDER BY 2 DESC, 1"""
    return {name: int(count) for name, count in tx.all(sql, (groups,)) if name not in rules.weights}
