"""Rewards as they came, and each episode's combined one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Literal

from slipstream.contract import Reward, RewardAck
from slipstream_proxy.store.driver import IN, Driver, Row, Tx
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.meta import get_meta, set_meta
from slipstream_proxy.store.rows import REWARD_COLUMNS, EpisodeRow, RewardRow, eid_of
from slipstream_proxy.store.scoring import LatestReward, combine
from slipstream_proxy.store.tallies import TallyTable
from slipstream_proxy.store.values import Name, Rules

ORPHAN = "NOT EXISTS (SELECT 1 FROM t_episodes e WHERE e.eid = r.eid)"
"""Of a reward ``r``. PostgreSQL compares NOT IN row by row where what is in does not fit its memory."""

LATE = 86_400.0
"""Seconds that a reward may be older than ``orphan_ttl`` and not be gone: the clock was set, or no proxy ran."""


class RewardTable:
    def __init__(self, db: Driver, rules: Rules, memory: Memory, tallies: TallyTable) -> None:
        self.db = db
        self.rules = rules
        self.memory = memory
        self.tallies = tallies

    def acknowledge(self, key: str, episode: str, idempotency: str | None, now: float) -> RewardAck | None:
        """What a post answers. None (404): the episode is unknown, and its rewards have waited ``orphan_ttl``."""
        eid = eid_of(key, episode)
        ep = self.memory.episodes.get(eid)
        if ep is not None and ep.state != "deleted" and not idempotency:
            return RewardAck(stored=True, known=True)
        with self.db.read() as tx:
            state = tx.all("SELECT state FROM t_episodes WHERE eid = ?", (eid,))
            if state == [("deleted",)]:
                return None
            sql = "SELECT count(*), min(ts), sum(CASE WHEN idem = ? THEN 1 ELSE 0 END) FROM t_rewards WHERE eid = ?"
            ((count, first, same),) = tx.all(sql, (idempotency or "", eid))
            if not state:
                gone = tx.all("SELECT 1 FROM t_expired WHERE eid = ?", (eid,))
                if gone or (count and first < now - self.rules.orphan_ttl):
                    return None
        return RewardAck(stored=not (idempotency and same), known=bool(state))

    def standing(self, names: Collection[Name], now: float) -> dict[Name, Literal["new", "known", "gone"]]:
        """What the store knows of these episodes. ``gone``: forgotten, or never seen within ``orphan_ttl``."""
        eids = {eid_of(*name): name for name in names}
        with self.db.read() as tx:
            states: dict[str, str] = dict(tx.all(f"SELECT eid, state FROM t_episodes WHERE eid {IN}", (list(eids),)))
            rest = [eid for eid in eids if eid not in states] or [""]
            old = f"SELECT eid FROM t_rewards WHERE eid {IN} GROUP BY eid HAVING min(ts) < ?"
            gone = {eid for (eid,) in tx.all(old, (rest, now - self.rules.orphan_ttl))}
            gone |= {eid for (eid,) in tx.all(f"SELECT eid FROM t_expired WHERE eid {IN}", (rest,))}
        gone |= {eid for eid, state in states.items() if state == "deleted"}
        return {name: "gone" if eid in gone else "known" if eid in states else "new" for eid, name in eids.items()}

    def insert(self, tx: Tx, rows: Sequence[RewardRow]) -> None:
        """Append rows; one whose id is there already is left out."""
        if not rows:
            return
        eids = list({r.eid for r in rows})
        known = {i for (i,) in tx.all(f"SELECT id FROM t_rewards WHERE eid {IN}", (eids,))}
        fresh = list({r.id: r for r in rows if r.id not in known}.values())
        first = self.db.next_seq(tx, len(fresh)) if fresh else 0
        tx.insert("t_rewards", [r._replace(seq=first + i) for i, r in enumerate(fresh)])

    def of(self, tx: Tx, eps: Collection[EpisodeRow]) -> dict[str, list[Reward]]:
        """Each episode's rewards, in the order in which they came."""
        found: dict[str, list[Reward]] = defaultdict(list)
        if eps:
            adapter = {e.eid: e.adapter for e in eps}
            sql = f"SELECT {REWARD_COLUMNS} FROM t_rewards WHERE eid {IN} ORDER BY seq"
            for row in map(RewardRow._make, tx.all(sql, (list(adapter),))):
                found[row.eid].append(row.public(adapter[row.eid]))
        return found

    def idempotency_keys(self, tx: Tx, eids: Collection[str]) -> set[tuple[str, str]]:
        """(episode, idempotency key) of the rewards of these episodes."""
        if not eids:
            return set()
        sql = f"SELECT eid, idem FROM t_rewards WHERE idem IS NOT NULL AND eid {IN}"
        return {(eid, idem) for eid, idem in tx.all(sql, (list(eids),))}

    def latest(self, tx: Tx, eids: Collection[str]) -> dict[str, list[LatestReward]]:
        """Each episode's latest row per (call, name), whatever its source."""
        found: dict[str, list[LatestReward]] = defaultdict(list)
        if eids:
            sql = f"""SELECT DISTINCT ON (eid, call, name) eid, call, name, value FROM t_rewards WHERE eid {IN}
                ORDER BY eid, call, name, seq DESC"""
            for eid, call, name, value in tx.all(sql, (list(eids),)):
                found[eid].append(LatestReward(call, name, value))
        return found

    def combined(self, tx: Tx, eids: Collection[str]) -> dict[str, float | None]:
        """Episode → the number that trains; None while a weighted name is missing."""
        latest = self.latest(tx, eids)
        return {eid: combine(self.rules, latest[eid]) if eid in latest else None for eid in eids}

    def orphans(self, tx: Tx) -> set[str]:
        """Episodes with rewards and no calls."""
        return {eid for (eid,) in tx.all(f"SELECT DISTINCT eid FROM t_rewards r WHERE {ORPHAN}")}

    def count_orphans(self, tx: Tx, now: float) -> int:
        """Episodes with rewards and no calls. Where nobody else writes they are known by now; else only rewards that
        the sweep may have left are compared with the episodes.
        """
        if self.memory.orphans is not None:
            return len(self.memory.orphans)
        sql = f"SELECT count(DISTINCT eid) FROM t_rewards r WHERE ts > ? AND {ORPHAN}"
        return int(tx.all(sql, (now - self.rules.orphan_ttl - LATE,))[0][0])

    def expire_orphans(self, tx: Tx, now: float, orphans: list[str] | None) -> set[str]:
        """Rewards whose episode did not come within ``orphan_ttl`` are dropped. ``orphans`` None: not known.

        → Their episodes.
        """
        old = now - self.rules.orphan_ttl
        if orphans is not None:
            found = tx.all(f"SELECT DISTINCT eid FROM t_rewards WHERE ts < ? AND eid {IN}", (old, orphans))
        else:
            found = tx.all(f"SELECT DISTINCT eid FROM t_rewards r WHERE ts < ? AND {ORPHAN}", (old,))
        eids = [eid for (eid,) in found]
        if eids:
            known = {e for (e,) in tx.all(f"SELECT eid FROM t_expired WHERE eid {IN}", (eids,))}
            tx.insert("t_expired", [(e, now) for e in eids if e not in known])
            with self.tallies.around(tx, eids):
                tx.run(f"DELETE FROM t_rewards WHERE eid {IN}", (eids,))
        return set(eids)

    def apply_rules(self) -> None:
        """Compute the episodes' rewards again after a change of ``reward.weights`` or ``reward.credit``."""
        now = f"{sorted(self.rules.weights.items())} {self.rules.credit}"
        with self.db.write() as tx:
            before = get_meta(tx, "reward rules")
            if before == now:
                return
            set_meta(tx, "reward rules", now)
            if before is not None:
                eids = [eid for (eid,) in tx.all("SELECT eid FROM t_episodes WHERE state <> 'deleted'")]
                rows: list[Row] = list(self.combined(tx, eids).items())
                tx.update("t_episodes", ("eid",), ("reward",), rows)
                tx.run(
                    "UPDATE t_groups SET state = 'waiting_reward' WHERE state = 'ready' AND id IN"
                    " (SELECT grp FROM t_episodes WHERE reward IS NULL AND grp IS NOT NULL)"
                )
                self.tallies.recount(tx)
