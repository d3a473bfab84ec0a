"""An episode is forgotten: its rows are deleted at once. What freed blocks, the spool and archives still hold of it
waits in ``t_erasing`` until all of them are rewritten, once for many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.codec import dump, load
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.episodes import EpisodeTable
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.lineage import adapters_of
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.rows import EpisodeRow, eid_of
from slipstream_proxy.store.tallies import TallyTable
from slipstream_proxy.store.values import Erasing, Forgotten, Name

SLACK = 60.0
"""Seconds around an episode's calls in which they are looked for."""


def name_of(eid: str) -> Name:
    """(key, id)"""
    key, _, episode = eid.partition("/")
    return key, episode


@dataclass(eq=False)
class Deletion:
    db: Driver
    memory: Memory
    calls: CallTable
    episodes: EpisodeTable
    groups: GroupTable
    tallies: TallyTable
    instance: str

    def delete(self, names: Collection[Name], now: float) -> Forgotten:
        """Forget these episodes: nothing reads them from here on, and what files still hold waits in ``erasing``."""
        with self.db.write() as tx:
            eids = list(self.episodes.load(tx, [eid_of(*name) for name in names]))
            batches = [b for (b,) in tx.all(f"SELECT DISTINCT batch FROM t_members WHERE eid {IN}", (eids,))]
            sql = f"SELECT id FROM t_batches WHERE state = 'trained' AND id {IN}"
            trained = [b for (b,) in tx.all(sql, (batches,))] if batches else []
            sql = f"""SELECT DISTINCT d.export, e.format FROM t_exported d JOIN t_exports e ON e.id = d.export
                WHERE d.eid {IN}"""
            found = sorted(tx.all(sql, (eids,)))
            adapters = sorted(adapters_of(tx, trained))
            self.forget(tx, eids, now)
        exports = [name for name, form in found if form != "archive"]
        archives = [name for name, form in found if form == "archive"]
        return Forgotten([name_of(eid) for eid in eids], adapters, exports, archives)

    def waiting(self) -> list[Erasing]:
        """Forgotten episodes whose bytes are still in some file of this proxy's."""
        with self.db.read() as tx:
            sql = "SELECT eid, ts, tables, archives FROM t_erasing WHERE instance = ? ORDER BY ts, eid"
            rows = tx.all(sql, (self.instance,))
        return [Erasing(*name_of(eid), at, tuple(load(tables)), tuple(load(kept))) for eid, at, tables, kept in rows]

    def erased(self, done: Collection[Erasing]) -> None:
        """Nothing holds these any more."""
        eids = [eid_of(e.key, e.episode) for e in done]
        with self.db.write() as tx:
            tx.run(f"DELETE FROM t_erasing WHERE instance = ? AND eid {IN}", (self.instance, eids))
            tx.run(f"DELETE FROM t_exported WHERE eid {IN}", (eids,))

    def rewrite(self, done: Collection[Erasing]) -> None:
        """Rewrite what had rows of these: freed blocks keep their bytes. Beside reads and writes."""
        self.db.rewrite(sorted({t for e in done for t in e.tables} | {"t_rewards", "t_episodes"}))

    def eids(self, tx: Tx, key: str | None, episode: str) -> list[str]:
        """The episode's stored identities. With a key: that one, known or not. Without: those of all keys."""
        if key is not None:
            return [eid_of(key, episode)]
        return [eid for (eid,) in tx.all("SELECT eid FROM t_episodes WHERE id = ?", (episode,))]

    def forget(self, tx: Tx, eids: Collection[str], now: float) -> None:
        """Leave a tombstone of each, which swallows calls and rewards that are still to come."""
        if not eids:
            return
        known = self.episodes.load(tx, eids)
        fresh = [eid for eid in dict.fromkeys(eids) if eid not in known or known[eid].state != "deleted"]
        with self.tallies.around(tx, fresh):
            self._forget(tx, fresh, {eid: known[eid] for eid in fresh if eid in known}, now)

    def _forget(self, tx: Tx, eids: list[str], known: dict[str, EpisodeRow], now: float) -> None:
        eps = list(known.values())
        self.groups.leave(tx, eps)
        held = self._delete_calls(tx, eps)
        sql = f"""SELECT d.eid, d.export FROM t_exported d JOIN t_exports e ON e.id = d.export
            WHERE e.format = 'archive' AND d.eid {IN}"""
        archives: dict[str, list[str]] = defaultdict(list)
        for eid, archive in tx.all(sql, (eids,)) if eps else ():
            archives[eid].append(archive)
        waiting = [(eid, now, self.instance, dump(held), dump(archives.get(eid, []))) for eid in eids]
        tx.insert("t_erasing", waiting)
        for table in ("t_rewards", "t_early", "t_episodes", "t_pins", "t_outcomes", "t_gaps"):
            tx.run(f"DELETE FROM {table} WHERE eid {IN}", (eids,))
        tombs = []
        for eid in eids:
            key, name = eid.split("/", 1)
            ep = known.get(eid) or EpisodeRow(eid, key, name, started=now, last_at=now)
            tomb = EpisodeRow(eid, ep.key, ep.id, split=ep.split, state="deleted", ended=now)
            tomb.started, tomb.last_at = ep.started, ep.last_at
            tombs.append(tomb.row())
        tx.insert("t_episodes", tombs)
        self.groups.mark_ready(tx, {ep.grp for ep in eps if ep.grp}, now)
        self.calls.known.clear()
        self.memory.drop(eids)

    def _delete_calls(self, tx: Tx, eps: list[EpisodeRow]) -> list[str]:
        """→ Tables that had calls of these."""
        if not eps:
            return []
        eids = [ep.eid for ep in eps]
        # The times let most of a table be passed over; its clock may have been set, so they are wide.
        since, until = min(ep.started for ep in eps) - SLACK, max(ep.last_at for ep in eps) + SLACK
        tables = self.calls.days.tables_of(tx, eps)
        with self.tallies.around_calls(tx, tables, eids):
            sql = f"WHERE eid {IN} AND ts >= ? AND ts <= ?"
            return [table for table in tables if tx.run(f"DELETE FROM {table} {sql}", (eids, since, until))]
