"""Where things stand, in numbers and in sentences: why there was no step yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream_proxy.store.driver import IN, Tx
from slipstream_proxy.store.protocol import Rules


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def counts(tx: Tx, rules: Rules, tables: Sequence[str]) -> dict[str, Any]:
    """What ``Statistics.counts`` answers. ``tables``: those of calls."""
    pairs = {
        "episodes": "SELECT state, count(*) FROM t_episodes GROUP BY state",
        "groups": """SELECT CASE WHEN parked THEN 'parked' ELSE state END, count(*) FROM t_groups
            WHERE kind <> 'window' GROUP BY 1""",
        "rewards": "SELECT source, count(*) FROM t_rewards GROUP BY source",
        "batches": "SELECT state, count(*) FROM t_batches GROUP BY state",
    }
    found: dict[str, Any] = {name: dict(tx.all(sql)) for name, sql in pairs.items()}
    found["calls"] = int(tx.all("SELECT coalesce(sum(calls), 0) FROM t_episodes")[0][0])
    found["untrainable"] = _untrainable(tx, tables)
    found["missing"] = _missing(tx, rules)
    sql = "SELECT count(DISTINCT eid) FROM t_rewards WHERE eid NOT IN (SELECT eid FROM t_episodes)"
    found["orphans"] = tx.all(sql)[0][0]
    found["waiting"] = _waiting(tx, rules, found)
    return found


def _untrainable(tx: Tx, tables: Sequence[str]) -> dict[str, int]:
    """Reason → calls of trained models that cannot be trained on, the most frequent first."""
    found: dict[str, int] = {}
    for table in tables:
        sql = f"SELECT reason, count(*) FROM {table} WHERE NOT trainable AND trained IS NOT NULL GROUP BY reason"
        for reason, count in tx.all(sql):
            found[reason or "unknown"] = found.get(reason or "unknown", 0) + count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _missing(tx: Tx, rules: Rules) -> dict[str, int]:
    """Weighted reward name → episodes of complete groups that wait for it."""
    found = {}
    for name in rules.weights:
        sql = f"""SELECT count(*) FROM t_episodes WHERE reward IS NULL
            AND grp IN (SELECT id FROM t_groups WHERE state = 'waiting_reward')
            AND eid NOT IN (SELECT eid FROM t_rewards WHERE name {IN})"""
        if count := tx.all(sql, ([name],))[0][0]:
            found[name] = count
    return found


GROUPS_LEFT = (
    ("parked", "group is parked: the judge failed too often", "groups are parked: the judge failed too often"),
    ("stale", "group is too stale to train on", "groups are too stale to train on"),
    (
        "dropped",
        "group was dropped with its adapter or episodes",
        "groups were dropped with their adapter or episodes",
    ),
    ("leased", "group is being trained on", "groups are being trained on"),
)
"""State of a group that is no candidate for a step, and how one and many are described."""


def _waiting(tx: Tx, rules: Rules, found: dict[str, Any]) -> list[str]:
    lines = []
    groups, episodes, need = found["groups"], found["episodes"], rules.min_groups
    ready = groups.get("ready", 0)
    if ready < need:
        lines.append(f"{plural(ready, 'group', 'groups')} complete and scored, {need} needed for a step")
    elif ready:
        lines.append(f"{plural(ready, 'group is', 'groups are')} ready: a trainer may lease them")
    if waiting := groups.get("waiting_reward", 0):
        lines.append(f"{plural(waiting, 'complete group waits', 'complete groups wait')} for rewards")
    for name, count in found["missing"].items():
        lines.append(f"{plural(count, 'episode has', 'episodes have')} no reward named '{name}'")
    if forming := groups.get("forming", 0):
        sql = "SELECT coalesce(sum(n), 0) FROM t_groups WHERE state = 'forming' AND kind <> 'window'"
        held = int(tx.all(sql)[0][0])
        lines.append(
            f"{plural(forming, 'group is', 'groups are')} forming with {plural(held, 'episode', 'episodes')}: "
            f"{rules.group_size} episodes of one task make a group"
        )
    if count := episodes.get("open", 0):
        lines.append(f"{plural(count, 'episode is', 'episodes are')} still open")
    for state, one, many in GROUPS_LEFT:
        if count := groups.get(state, 0):
            lines.append(plural(count, one, many))
    if orphans := found["orphans"]:
        lines.append(f"{plural(orphans, 'unknown episode has', 'unknown episodes have')} rewards but no calls")
    if why := found["untrainable"]:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in why.items())
        lines.append(f"{plural(sum(why.values()), 'call', 'calls')} can't be trained on: {reasons}")
    return lines
