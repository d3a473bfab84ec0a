"""Where things stand, in numbers (why there was no step yet: ``funnel.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.driver import IN, Tx
from slipstream_proxy.store.meta import STALE_RUNS, get_meta
from slipstream_proxy.store.values import Rules


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def counts(tx: Tx, rules: Rules, tables: Sequence[str], orphans: int, now: float) -> JsonObject:
    """What ``Statistics.counts`` answers. ``tables``: those of calls.

    ``orphans``: episodes with rewards and no calls.
    """
    pairs = {
        "episodes": "SELECT state, count(*) FROM t_episodes GROUP BY state",
        "groups": """SELECT CASE WHEN parked THEN 'parked' ELSE state END, count(*) FROM t_groups
            WHERE kind <> 'window' GROUP BY 1""",
        "rewards": "SELECT source, count(*) FROM t_rewards GROUP BY source",
        "batches": "SELECT state, count(*) FROM t_batches GROUP BY state",
    }
    found: JsonObject = {name: dict(tx.all(sql)) for name, sql in pairs.items()}
    found["calls"] = int(tx.all("SELECT coalesce(sum(calls), 0) FROM t_episodes")[0][0])
    found["untrainable"] = untrainable_calls(tx, tables)
    found["missing"] = missing_rewards(tx, rules)
    found["orphans"] = orphans
    found["lost"] = _lost(tx)
    found["stale_runs"] = int(get_meta(tx, STALE_RUNS) or 0)
    found["judging"] = _judging(tx, now)
    return found


def _lost(tx: Tx) -> dict[str, int]:
    """Cause → groups from which nothing was learnt, the most frequent first."""
    sql = """SELECT coalesce(cause, state), count(*) FROM t_groups
        WHERE cause IS NOT NULL OR state IN ('stale', 'dropped', 'skipped') GROUP BY 1 ORDER BY 2 DESC, 1"""
    return dict(tx.all(sql))


def _judging(tx: Tx, now: float) -> dict[str, float]:
    """Groups that wait for rewards: how many, seconds that the oldest one has, and ``lag``: seconds that the latest
    took.
    """
    sql = "SELECT count(*), min(completed) FROM t_groups WHERE state = 'waiting_reward' AND NOT parked"
    ((waiting, oldest),) = tx.all(sql)
    sql = """SELECT ready_at - completed FROM t_groups WHERE ready_at IS NOT NULL AND completed IS NOT NULL
        ORDER BY ready_at DESC LIMIT 20"""
    lags = [lag for (lag,) in tx.all(sql)]
    age = max(0.0, now - oldest) if oldest is not None else 0.0
    return {"waiting": waiting, "oldest": age, "lag": sum(lags) / len(lags) if lags else 0.0}


def untrainable_calls(tx: Tx, tables: Sequence[str]) -> dict[str, int]:
    """Reason → calls of trained models that cannot be trained on, the most frequent first."""
    found: dict[str, int] = {}
    for table in tables:
        sql = f"SELECT reason, count(*) FROM {table} WHERE NOT trainable AND trained IS NOT NULL GROUP BY reason"
        for reason, count in tx.all(sql):
            found[reason or "unknown"] = found.get(reason or "unknown", 0) + count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def missing_rewards(tx: Tx, rules: Rules) -> dict[str, int]:
    """Weighted reward name → episodes of complete groups that wait for it."""
    found = {}
    for name in rules.weights:
        sql = f"""SELECT count(*) FROM t_episodes WHERE reward IS NULL
            AND grp IN (SELECT id FROM t_groups WHERE state = 'waiting_reward')
            AND eid NOT IN (SELECT eid FROM t_rewards WHERE name {IN})"""
        if count := tx.all(sql, ([name],))[0][0]:
            found[name] = count
    return found
