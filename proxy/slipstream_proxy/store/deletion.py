"""An episode is forgotten: its rows are deleted, then the tables are written again so that no file holds its text."""

from __future__ import annotations

from collections.abc import Collection

from slipstream.contract import Deleted
from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.episodes import EpisodeTable
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.lineage import adapters_of
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.rows import EpisodeRow, eid_of
from slipstream_proxy.store.tallies import TallyTable


class Deletion:
    def __init__(
        self,
        db: Driver,
        memory: Memory,
        calls: CallTable,
        episodes: EpisodeTable,
        groups: GroupTable,
        tallies: TallyTable,
    ) -> None:
        self.db = db
        self.memory = memory
        self.calls = calls
        self.episodes = episodes
        self.groups = groups
        self.tallies = tallies

    def delete(self, key: str | None, episode: str, now: float) -> Deleted | None:
        """Forget an episode: text and tokens are gone from the files when this returns. None: there is none."""
        with self.db.write() as tx:
            eids = list(self.episodes.load(tx, self.eids(tx, key, episode)))
            if not eids:
                return None
            batches = [b for (b,) in tx.all(f"SELECT DISTINCT batch FROM t_members WHERE eid {IN}", (eids,))]
            sql = f"SELECT id FROM t_batches WHERE state = 'trained' AND id {IN}"
            trained = [b for (b,) in tx.all(sql, (batches,))] if batches else []
            adapters = sorted(adapters_of(tx, trained))
            exports = sorted({e for (e,) in tx.all(f"SELECT export FROM t_exported WHERE eid {IN}", (eids,))})
            tx.run(f"DELETE FROM t_exported WHERE eid {IN}", (eids,))
            self.forget(tx, eids, now)
        self.scrub()
        return Deleted(id=episode, adapters=adapters, exports=exports)

    def eids(self, tx: Tx, key: str | None, episode: str) -> list[str]:
        """The episode's stored identities: with its key that one, known or not; without (an admin asks) those of all
        keys.
        """
        if key is not None:
            return [eid_of(key, episode)]
        return [eid for (eid,) in tx.all("SELECT eid FROM t_episodes WHERE id = ?", (episode,))]

    def forget(self, tx: Tx, eids: Collection[str], now: float) -> None:
        """Leave a tombstone of each, which swallows calls and rewards that are still to come."""
        if not eids:
            return
        with self.tallies.around(tx, eids):
            self._forget(tx, eids, now)

    def _forget(self, tx: Tx, eids: Collection[str], now: float) -> None:
        known = self.episodes.load(tx, eids)
        eps = list(known.values())
        self.groups.leave(tx, eps)
        days = self.calls.days
        tables = days.tables(tx) if len(known) < len(eids) else days.tables_of(tx, eps)
        with self.tallies.around_calls(tx, tables, eids):
            for table in tables:
                if tx.run(f"DELETE FROM {table} WHERE eid {IN}", (list(eids),)):
                    tx.run("DELETE FROM t_rewrite WHERE tab = ?", (table,))
                    tx.run("INSERT INTO t_rewrite VALUES (?)", (table,))
        for table in ("t_rewards", "t_early", "t_episodes", "t_pins", "t_outcomes"):
            tx.run(f"DELETE FROM {table} WHERE eid {IN}", (list(eids),))
        tombs = []
        for eid in dict.fromkeys(eids):
            key, name = eid.split("/", 1)
            ep = known.get(eid) or EpisodeRow(eid, key, name, started=now, last_at=now)
            tomb = EpisodeRow(eid, ep.key, ep.id, split=ep.split, state="deleted", ended=now)
            tomb.started, tomb.last_at = ep.started, ep.last_at
            tombs.append(tomb.row())
        tx.insert("t_episodes", tombs)
        self.groups.mark_ready(tx, {ep.grp for ep in eps if ep.grp}, now)
        self.calls.known.clear()
        self.memory.drop(eids)

    def scrub(self) -> None:
        """Write tables again from which rows were deleted: freed blocks keep their bytes."""
        with self.db.read() as tx:
            tables = [t for (t,) in tx.all("SELECT tab FROM t_rewrite")]
        if tables:
            self.db.rewrite([*tables, "t_rewards", "t_episodes"])
            with self.db.write() as tx:
                tx.run(f"DELETE FROM t_rewrite WHERE tab {IN}", (tables,))
