"""An episode's life after its calls: it ends, it is forgotten; rewards, pins, and what time does to all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slipstream.contract import Deleted, RewardAck
from slipstream_proxy.store.base import IN, log
from slipstream_proxy.store.batches import Batches
from slipstream_proxy.store.driver import Row, Tx
from slipstream_proxy.store.protocol import Pin
from slipstream_proxy.store.rows import EP_COLUMNS, Ep, eid_of


class Lifecycle(Batches):
    # rewards

    def _insert_rewards(self, tx: Tx, rows: Sequence[Row]) -> None:
        """Append reward rows (``seq`` is given here); one whose id is there already is left out."""
        if not rows:
            return
        eids = list({r[2] for r in rows})
        known = {i for (i,) in tx.all(f"SELECT id FROM t_rewards WHERE eid {IN}", (eids,))}
        fresh = list({r[0]: r for r in rows if r[0] not in known}.values())
        first = self.db.next_seq(tx, len(fresh)) if fresh else 0
        tx.insert("t_rewards", [(r[0], first + i, *r[2:]) for i, r in enumerate(fresh)])

    def reward_known(self, key: str, episode: str, idempotency: str | None, now: float) -> RewardAck | None:
        """What a post would answer; None: its episode is unknown and ``orphan_ttl`` is over for earlier rewards of it (404)."""
        eid = eid_of(key, episode)
        with self.db.read() as tx:
            ep = self._load(tx, [eid]).get(eid)
            if ep is not None and ep.state == "deleted":
                return None
            sql = "SELECT count(*), min(ts), sum(CASE WHEN idem = ? THEN 1 ELSE 0 END) FROM t_rewards WHERE eid = ?"
            ((count, first, same),) = tx.all(sql, (idempotency or "", eid))
            if ep is None:
                gone = tx.all("SELECT 1 FROM t_expired WHERE eid = ?", (eid,))
                if gone or (count and first < now - self.rules.orphan_ttl):
                    return None
        return RewardAck(stored=not (idempotency and same), known=ep is not None)

    # pins

    def pin(self, key: str, episode: str, model: str, adapter: str, arm: str, now: float) -> Pin:
        """The episode's pin: the one stored, else this one."""
        eid = eid_of(key, episode)
        found = "SELECT adapter, arm FROM t_pins WHERE eid = ?"
        with self.db.read() as tx:
            rows = tx.all(found, (eid,))
        if not rows:
            with self.db.write(serial=False) as tx:
                rows = tx.all(found, (eid,))
                if not rows:
                    tx.run(
                        f"INSERT INTO t_pins VALUES (?, ?, ?, ?, ?, TRUE){self.db.on_conflict}",
                        (eid, model, adapter, arm, now),
                    )
                    rows = tx.all(found, (eid,))
        return Pin(*rows[0])

    def open_pins(self) -> dict[str, int]:
        """Adapter → open episodes."""
        with self.db.read() as tx:
            return dict(tx.all("SELECT adapter, count(*) FROM t_pins WHERE active GROUP BY adapter"))

    def move_pins(self, old: str, new: str) -> int:
        with self.db.write() as tx:
            return tx.run("UPDATE t_pins SET adapter = ? WHERE adapter = ? AND active", (new, old))

    def _pin_rows(self, tx: Tx, pins: Mapping[str, Row]) -> None:
        """What the calls say: absent pins are put, a moved one is changed."""
        if not pins:
            return
        known = {
            e: (a, arm) for e, a, arm in tx.all(f"SELECT eid, adapter, arm FROM t_pins WHERE eid {IN}", (list(pins),))
        }
        tx.insert("t_pins", [row for eid, row in pins.items() if eid not in known])
        moved = [(e, r[2], r[3]) for e, r in pins.items() if e in known and known[e] != (r[2], r[3])]
        tx.update("t_pins", ("eid",), ("adapter", "arm"), moved)

    def _unpin(self, tx: Tx, eids: Collection[str]) -> None:
        if eids:
            tx.run(f"UPDATE t_pins SET active = FALSE WHERE active AND eid {IN}", (list(eids),))

    # time

    def sweep(self, now: float) -> None:
        """Idle episodes become done, groups complete by age, leases run out, orphans expire, what was deleted is written over."""
        with self.db.write() as tx:
            idle = now - self.rules.idle_timeout
            ended = [
                Ep(*r)
                for r in tx.all(f"SELECT {EP_COLUMNS} FROM t_episodes WHERE state = 'open' AND last_at < ?", (idle,))
            ]
            for ep in ended:
                ep.state, ep.ended = "done", ep.last_at
            full = self._join(tx, ended, now)
            tx.update(
                "t_episodes", ("eid",), ("state", "ended", "grp"), [(e.eid, e.state, e.ended, e.grp) for e in ended]
            )
            self._unpin(tx, [e.eid for e in ended])
            self.memory.drop([e.eid for e in ended])
            tx.run(
                "UPDATE t_pins SET active = FALSE WHERE active AND ts < ? AND eid NOT IN (SELECT eid FROM t_episodes)",
                (idle,),
            )
            aged = tx.all(
                "SELECT id FROM t_groups WHERE state = 'forming' AND n >= 2 AND created < ?",
                (now - self.rules.group_max_age,),
            )
            complete = {*full, *(g for (g,) in aged)}
            self._complete(tx, complete, now)
            self._ready(tx, complete, now)
            self._expire(tx, now)
            self._orphans(tx, now)
        try:
            self._scrub()
        except Exception:
            # It stays noted, and the next sweep tries again: there may be no room for the copy.
            log.exception("what was deleted could not be written over yet")

    def _orphans(self, tx: Tx, now: float) -> None:
        old = now - self.rules.orphan_ttl
        rows = tx.all(
            "SELECT DISTINCT eid FROM t_rewards WHERE ts < ? AND eid NOT IN (SELECT eid FROM t_episodes)", (old,)
        )
        if rows:
            eids = [eid for (eid,) in rows]
            known = {e for (e,) in tx.all(f"SELECT eid FROM t_expired WHERE eid {IN}", (eids,))}
            tx.insert("t_expired", [(e, now) for e in eids if e not in known])
            self.memory.orphans = None if self.memory.orphans is None else self.memory.orphans - set(eids)
            tx.run(f"DELETE FROM t_rewards WHERE eid {IN}", (eids,))
        tx.run("DELETE FROM t_early WHERE ts < ?", (old,))

    # forgetting

    def _eids(self, tx: Tx, key: str | None, episode: str) -> list[str]:
        """The episode's stored identities: with its key that one, known or not; without (an admin asks) those of all keys."""
        if key is not None:
            return [eid_of(key, episode)]
        return [eid for (eid,) in tx.all("SELECT eid FROM t_episodes WHERE id = ?", (episode,))]

    def delete(self, key: str | None, episode: str, now: float) -> Deleted | None:
        """Forget an episode: text and tokens are gone from the files when this returns. None: there is none."""
        with self.db.write() as tx:
            eids = list(self._load(tx, self._eids(tx, key, episode)))
            if not eids:
                return None
            batches = [b for (b,) in tx.all(f"SELECT DISTINCT batch FROM t_members WHERE eid {IN}", (eids,))]
            state = (
                [b for (b,) in tx.all(f"SELECT id FROM t_batches WHERE state = 'trained' AND id {IN}", (batches,))]
                if batches
                else []
            )
            adapters = sorted(self._adapters_of(tx, state))
            exports = sorted({e for (e,) in tx.all(f"SELECT export FROM t_exported WHERE eid {IN}", (eids,))})
            tx.run(f"DELETE FROM t_exported WHERE eid {IN}", (eids,))
            self._forget(tx, eids, now)
        self._scrub()
        return Deleted(id=episode, adapters=adapters, exports=exports)

    def _forget(self, tx: Tx, eids: Collection[str], now: float) -> None:
        """Leave a tombstone of each, which swallows calls and rewards that are still to come."""
        if not eids:
            return
        known = self._load(tx, eids)
        self._leave(tx, list(known.values()))
        tables = self._day_tables(tx) if len(known) < len(eids) else self._tables_of(tx, list(known.values()))
        for table in tables:
            if tx.run(f"DELETE FROM {table} WHERE eid {IN}", (list(eids),)):
                tx.run("DELETE FROM t_rewrite WHERE tab = ?", (table,))
                tx.run("INSERT INTO t_rewrite VALUES (?)", (table,))
        for table in ("t_rewards", "t_early", "t_episodes", "t_pins"):
            tx.run(f"DELETE FROM {table} WHERE eid {IN}", (list(eids),))
        tombs = []
        for eid in dict.fromkeys(eids):
            key, name = eid.split("/", 1)
            ep = known.get(eid) or Ep(eid, key, name, started=now, last_at=now)
            tombs.append(
                Ep(
                    eid,
                    ep.key,
                    ep.id,
                    split=ep.split,
                    state="deleted",
                    started=ep.started,
                    last_at=ep.last_at,
                    ended=now,
                ).row()
            )
        tx.insert("t_episodes", tombs)
        self._ready(tx, {ep.grp for ep in known.values() if ep.grp}, now)
        self.parents.clear()
        self.memory.drop(eids)

    def _tables_of(self, tx: Tx, eps: Collection[Ep]) -> list[str]:
        return self._day_tables(tx, min(e.started for e in eps), max(e.last_at for e in eps)) if eps else []

    def _scrub(self) -> None:
        with self.db.read() as tx:
            tables = [t for (t,) in tx.all("SELECT tab FROM t_rewrite")]
        if tables:
            self.db.rewrite([*tables, "t_rewards", "t_episodes"])
            with self.db.write() as tx:
                tx.run(f"DELETE FROM t_rewrite WHERE tab {IN}", (tables,))
