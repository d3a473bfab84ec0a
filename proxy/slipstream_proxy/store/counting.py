"""Where things stand, in numbers and in sentences: why there was no step yet."""

from __future__ import annotations

from typing import Any

from slipstream_proxy.store.base import IN, Base
from slipstream_proxy.store.driver import Tx


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


class Counting(Base):
    def counts(self, now: float) -> dict[str, Any]:
        """Episodes and groups by state, calls, untrainable by reason, reward rows by source, missing rewards by name, ``waiting`` sentences."""
        with self.db.read() as tx:
            pairs = {
                "episodes": "SELECT state, count(*) FROM t_episodes GROUP BY state",
                "groups": "SELECT CASE WHEN parked THEN 'parked' ELSE state END, count(*) FROM t_groups WHERE kind <> 'window' GROUP BY 1",
                "rewards": "SELECT source, count(*) FROM t_rewards GROUP BY source",
                "batches": "SELECT state, count(*) FROM t_batches GROUP BY state",
            }
            found: dict[str, Any] = {name: dict(tx.all(sql)) for name, sql in pairs.items()}
            found["calls"] = int(tx.all("SELECT coalesce(sum(calls), 0) FROM t_episodes")[0][0])
            found["untrainable"] = self._untrainable(tx)
            found["missing"] = self._missing(tx)
            sql = "SELECT count(DISTINCT eid) FROM t_rewards WHERE eid NOT IN (SELECT eid FROM t_episodes)"
            found["orphans"] = tx.all(sql)[0][0]
            found["waiting"] = self._waiting(tx, found)
        return found

    def _untrainable(self, tx: Tx) -> dict[str, int]:
        """Reason → calls of trained models that cannot be trained on, the most frequent first."""
        found: dict[str, int] = {}
        for table in self._day_tables(tx):
            for reason, count in tx.all(
                f"SELECT reason, count(*) FROM {table} WHERE NOT trainable AND trained IS NOT NULL GROUP BY reason"
            ):
                found[reason or "unknown"] = found.get(reason or "unknown", 0) + count
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def _missing(self, tx: Tx) -> dict[str, int]:
        """Weighted reward name → episodes of complete groups that wait for it."""
        found = {}
        for name in self.rules.weights:
            sql = f"""SELECT count(*) FROM t_episodes WHERE reward IS NULL AND grp IN (SELECT id FROM t_groups WHERE state = 'waiting_reward')
                AND eid NOT IN (SELECT eid FROM t_rewards WHERE name {IN})"""
            if count := tx.all(sql, ([name],))[0][0]:
                found[name] = count
        return found

    def _waiting(self, tx: Tx, found: dict[str, Any]) -> list[str]:
        said = []
        groups, episodes, need = found["groups"], found["episodes"], self.rules.min_groups
        ready = groups.get("ready", 0)
        if ready < need:
            said.append(f"{plural(ready, 'group', 'groups')} complete and scored, {need} needed for a step")
        elif ready:
            said.append(f"{plural(ready, 'group is', 'groups are')} ready: a trainer may lease them")
        if waiting := groups.get("waiting_reward", 0):
            said.append(f"{plural(waiting, 'complete group waits', 'complete groups wait')} for rewards")
        for name, count in found["missing"].items():
            said.append(f"{plural(count, 'episode has', 'episodes have')} no reward named '{name}'")
        if forming := groups.get("forming", 0):
            sql = "SELECT coalesce(sum(n), 0) FROM t_groups WHERE state = 'forming' AND kind <> 'window'"
            held = int(tx.all(sql)[0][0])
            said.append(
                f"{plural(forming, 'group is', 'groups are')} forming with {plural(held, 'episode', 'episodes')}: "
                f"{self.rules.group_size} episodes of one task make a group"
            )
        if count := episodes.get("open", 0):
            said.append(f"{plural(count, 'episode is', 'episodes are')} still open")
        for state, one, many in (
            ("parked", "group is parked: the judge failed too often", "groups are parked: the judge failed too often"),
            ("stale", "group is too stale to train on", "groups are too stale to train on"),
            (
                "dropped",
                "group was dropped with its adapter or episodes",
                "groups were dropped with their adapter or episodes",
            ),
            ("leased", "group is being trained on", "groups are being trained on"),
        ):
            if count := groups.get(state, 0):
                said.append(plural(count, one, many))
        if orphans := found["orphans"]:
            said.append(f"{plural(orphans, 'unknown episode has', 'unknown episodes have')} rewards but no calls")
        if why := found["untrainable"]:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in why.items())
            said.append(f"{plural(sum(why.values()), 'call', 'calls')} can't be trained on: {reasons}")
        return said
