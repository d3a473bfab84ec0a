"""Where things stand, in numbers (why there was no step yet: ``funnel.py``)."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.driver import IN, Tx
from slipstream_proxy.store.meta import STALE_RUNS, get_meta
from slipstream_proxy.store.tallies import Tallied
from slipstream_proxy.store.values import Rules


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def counts(tx: Tx, kept: Tallied, missing: dict[str, int], orphans: int, now: float) -> JsonObject:
    """What ``Statistics.counts`` answers. ``orphans``: episodes with rewards and no calls."""
    pairs = {
        "groups": """SELECT CASE WHEN parked THEN 'parked' ELSE state END, count(*) FROM t_groups
            WHERE kind <> 'window' GROUP BY 1""",
        "batches": "SELECT state, count(*) FROM t_batches GROUP BY state",
    }
    found: JsonObject = {name: dict(tx.all(sql)) for name, sql in pairs.items()}
    found["episodes"] = totals((state, tally.n) for (state, *_), tally in kept.episodes.items())
    found["rewards"] = {source: tally.n for (source,), tally in kept.rewards.items()}
    found["calls"] = int(sum(tally.x for tally in kept.episodes.values()))
    found["untrainable"] = untrainable_calls(kept)
    found["missing"] = missing
    found["orphans"] = orphans
    found["lost"] = _lost(tx)
    found["stale_runs"] = int(get_meta(tx, STALE_RUNS) or 0)
    found["judging"] = _judging(tx, now)
    return found


def totals(items: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums by name."""
    found: dict[str, int] = {}
    for name, n in items:
        found[name] = found.get(name, 0) + n
    return found


def _lost(tx: Tx) -> dict[str, int]:
    """Cause → groups from which nothing was learnt, the most frequent first."""
    sql = """SELECT coalesce(cause, state), count(*) FROM t_groups
        WHERE cause IS NOT NULL OR state IN ('stale', 'dropped', 'skipped') GROUP BY 1 ORDER BY 2 DESC, 1"""
    return dict(tx.all(sql))


def _judging(tx: Tx, now: float) -> dict[str, float]:
    """Groups that wait for rewards: how many, the oldest one's seconds, and the latest one's (``lag``)."""
    sql = "SELECT count(*), min(completed) FROM t_groups WHERE state = 'waiting_reward' AND NOT parked"
    ((waiting, oldest),) = tx.all(sql)
    sql = """SELECT ready_at - completed FROM t_groups WHERE ready_at IS NOT NULL AND completed IS NOT NULL
        ORDER BY ready_at DESC LIMIT 20"""
    lags = [lag for (lag,) in tx.all(sql)]
    age = max(0.0, now - oldest) if oldest is not None else 0.0
    return {"waiting": waiting, "oldest": age, "lag": sum(lags) / len(lags) if lags else 0.0}


def untrainable_calls(kept: Tallied) -> dict[str, int]:
    """Reason → calls of trained models that cannot be trained on, the most frequent first."""
    found = totals((reason, tally.n) for (_, reason), tally in kept.untrainable.items())
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def missing_rewards(tx: Tx, rules: Rules) -> dict[str, int]:
    """Weighted reward name → episodes of complete groups that wait for it."""
    groups = [group for (group,) in tx.all("SELECT id FROM t_groups WHERE state = 'waiting_reward'")]
    found = {}
    for name in rules.weights if groups else ():
        sql = f"""SELECT count(*) FROM t_episodes e WHERE e.reward IS NULL AND e.grp {IN}
            AND NOT EXISTS (SELECT 1 FROM t_rewards r WHERE r.eid = e.eid AND r.name = ?)"""
        if count := tx.all(sql, (groups, name))[0][0]:
            found[name] = count
    return found


def unweighted_rewards(tx: Tx, rules: Rules) -> dict[str, int]:
    """Name without a weight → episodes of complete groups that have such a reward and wait for another name."""
    groups = [group for (group,) in tx.all("SELECT id FROM t_groups WHERE state = 'waiting_reward'")]
    if not groups:
        return {}
    sql = f"""SELECT r.name, count(DISTINCT r.eid) FROM t_rewards r JOIN t_episodes e ON e.eid = r.eid
        WHERE e.reward IS NULL AND e.grp {IN} GROUP BY 1 ORDER BY 2 DESC, 1"""
    return {name: int(count) for name, count in tx.all(sql, (groups,)) if name not in rules.weights}
