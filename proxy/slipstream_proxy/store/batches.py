"""The trainer's work: ready groups leased as one Arrow table, trained on once or back again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any
from uuid import uuid4

from slipstream.contract import BatchAck, BatchLeaseIn
from slipstream_proxy.store.base import IN, TOKEN_COLUMNS
from slipstream_proxy.store.driver import Row, Tx
from slipstream_proxy.store.groups import Groups
from slipstream_proxy.store.protocol import LeasedBatch
from slipstream_proxy.store.rows import EP_COLUMNS, Ep, load
from slipstream_proxy.store.scoring import combine_calls
from slipstream_proxy.store.table import Member, batch_table

OUTCOMES = ("trained", "skipped", "released")


def share_out(groups: Sequence[tuple[str, str]], most: int, share: float) -> list[str]:
    """The oldest ``most`` of (group, key), but no more than ``share`` × ``most`` of one key's where other keys wait too."""
    keys = {key for _, key in groups}
    cap = most if len(keys) < 2 else max(1, int(share * most))
    taken: dict[str, int] = defaultdict(int)
    chosen: list[str] = []
    for group, key in groups:
        if len(chosen) < most and taken[key] < cap:
            taken[key] += 1
            chosen.append(group)
    return chosen


class Batches(Groups):
    def lease_batch(self, wanted: BatchLeaseIn, versions: dict[str, int], live: int, now: float) -> LeasedBatch | None:
        """``versions``: adapter → its version; ``live`` the live one's: what is more than ``max_staleness`` behind is left out and counted."""
        with self.db.write(serial=False) as tx:
            self._expire(tx, now)
            model = wanted.model or self._fullest(tx)
            if model is None:
                return None
            sql = f"""SELECT id, key, ready_at, kind, task FROM t_groups WHERE state = 'ready' AND split = 'train' AND model = ?
                ORDER BY ready_at, created, id LIMIT ?{self.db.lock_rows}"""
            rows = tx.all(sql, (model, 4 * wanted.max_groups + 64))
            members = self._members(tx, [r[0] for r in rows])
            rows = self._left_out(tx, rows, members, versions, live - wanted.max_staleness)
            if not rows or (len(rows) < wanted.min_groups and min(r[2] for r in rows) > now - wanted.max_wait):
                return None
            chosen = set(share_out([(r[0], r[1]) for r in rows], wanted.max_groups, self.rules.key_share))
            rows = [r for r in rows if r[0] in chosen]
            batch, lease = f"b{int(now * 1000):013d}-{uuid4().hex[:8]}", uuid4().hex
            until = now + wanted.seconds
            tx.insert("t_batches", [(batch, lease, wanted.worker, model, "leased", until, now, None, None, None)])
            tx.run(f"UPDATE t_groups SET state = 'leased', batch = ? WHERE id {IN}", (batch, list(chosen)))
            eps = [(r, ep) for r in rows for ep in members[r[0]]]
            tx.insert("t_members", [(batch, r[0], ep.eid, ep.reward, None) for r, ep in eps])
            latest = self._latest(tx, [ep.eid for _, ep in eps]) if self.rules.credit == "call" else {}
        # Outside the transaction: what is read below does not change any more, and the ingester need not wait for it.
        with self.db.read() as tx:
            calls = self._call_rows(tx, [ep for _, ep in eps], TOKEN_COLUMNS)
        found = [
            Member(r[0], r[3], r[4], ep, calls[ep.eid], combine_calls(self.rules, latest.get(ep.eid, ()))) for r, ep in eps
        ]  # fmt: skip
        return LeasedBatch(batch, lease, until, batch_table(found, versions, live))

    def _fullest(self, tx: Tx) -> str | None:
        """The model with the most ready groups."""
        sql = "SELECT model FROM t_groups WHERE state = 'ready' AND split = 'train' GROUP BY model ORDER BY count(*) DESC, model LIMIT 1"
        found = tx.all(sql)
        return found[0][0] if found else None

    def _members(self, tx: Tx, groups: Collection[str]) -> dict[str, list[Ep]]:
        found: dict[str, list[Ep]] = defaultdict(list)
        if groups:
            for row in tx.all(
                f"SELECT {EP_COLUMNS} FROM t_episodes WHERE grp {IN} ORDER BY started, eid", (list(groups),)
            ):
                ep = Ep(*row)
                found[ep.grp or ""].append(ep)
        return found

    def _left_out(
        self, tx: Tx, rows: list[Row], members: dict[str, list[Ep]], versions: dict[str, int], oldest: int
    ) -> list[Row]:
        """Groups with a call of a version below ``oldest`` are stale, those of an adapter that was taken back are dropped. → The others."""
        taken_back = {
            name for (name,) in tx.all("SELECT name FROM t_adapters WHERE state IN ('rolled_back', 'refused')")
        }
        states: dict[str, str] = {}
        for row in rows:
            used = {a for ep in members[row[0]] for a in load(ep.adapters)}
            if used & taken_back or not members[row[0]]:
                states[row[0]] = "dropped"
            elif any(versions.get(a, 0) < oldest for a in used):
                states[row[0]] = "stale"
        for state in ("dropped", "stale"):
            out = [g for g, s in states.items() if s == state]
            if out:
                tx.run(f"UPDATE t_groups SET state = ? WHERE id {IN}", (state, out))
        return [r for r in rows if r[0] not in states]

    # leases that end

    def _expire(self, tx: Tx, now: float) -> None:
        """Leases that ran out: their groups are ready again. An ack is still taken until another lease has them."""
        if tx.run("UPDATE t_batches SET state = 'expired' WHERE state = 'leased' AND until < ?", (now,)):
            self._return(tx, "b.state = 'expired'", ())

    def _return(self, tx: Tx, which: str, params: tuple[Any, ...]) -> int:
        sql = f"UPDATE t_groups SET state = 'ready' WHERE state = 'leased' AND batch IN (SELECT b.id FROM t_batches b WHERE {which})"
        return tx.run(sql, params)

    def release_leases(self, worker: str) -> int:
        """A worker begins anew: what it had leased is free at once. → Leases released."""
        with self.db.write() as tx:
            count = tx.run("UPDATE t_batches SET state = 'expired' WHERE state = 'leased' AND worker = ?", (worker,))
            self._return(tx, "b.state = 'expired'", ())
            sql = (
                "UPDATE t_groups SET judge_lease = NULL, judge_until = NULL, judge_worker = NULL WHERE judge_worker = ?"
            )
            return count + tx.run(sql, (worker,))

    def batch_members(self, batch: str) -> dict[str, Any]:
        """``{"groups": [id], "episodes": [[key, episode, group]]}`` of a leased batch, for its ``ack`` mutation."""
        with self.db.read() as tx:
            rows = tx.all("SELECT grp, eid FROM t_members WHERE batch = ? ORDER BY grp, eid", (batch,))
        return {
            "groups": list(dict.fromkeys(g for g, _ in rows)),
            "episodes": [[*eid.split("/", 1), g] for g, eid in rows],
        }

    def ack_batch(self, batch: str, ack: BatchAck, now: float) -> bool:
        """False: the lease is not this worker's any more (409). The same ack twice changes nothing."""
        with self.db.write() as tx:
            return self._ack(tx, batch, ack, now)

    def _ack(
        self,
        tx: Tx,
        batch: str,
        ack: BatchAck,
        now: float,
        *,
        members: dict[str, Any] | None = None,
        force: bool = False,
    ) -> bool:
        """``force``: a mutation that was accepted; what the batch was comes from ``members`` when the store has been rebuilt since."""
        found = tx.all("SELECT lease, state FROM t_batches WHERE id = ?", (batch,))
        if not found:
            if not force:
                return False
            tx.insert("t_batches", [(batch, ack.lease, "", "", "expired", now, now, None, None, None)])
            rows = [
                (batch, group, f"{key}/{episode}", None, None)
                for key, episode, group in (members or {}).get("episodes", ())
            ]
            tx.insert("t_members", rows)
            eids = [r[2] for r in rows]
            if eids:
                # Only what trains is settled for good; a group of the rebuilt store may be another cut of the same episodes.
                tx.run(
                    f"""UPDATE t_groups SET batch = ? WHERE state IN ('ready', 'waiting_reward')
                    AND id IN (SELECT grp FROM t_episodes WHERE eid {IN})""",
                    (batch, eids),
                )
        else:
            lease, state = found[0]
            if lease != ack.lease and not force:
                return False
            if state in OUTCOMES:
                return bool(state == ack.outcome)
            again = (
                "SELECT 1 FROM t_groups WHERE batch <> ? AND id IN (SELECT grp FROM t_members WHERE batch = ?) LIMIT 1"
            )
            if tx.all(again, (batch, batch)):
                return False
        after = {"trained": "trained", "skipped": "skipped", "released": "ready"}[ack.outcome]
        waiting = "'leased', 'ready', 'waiting_reward'" if after == "trained" else "'leased', 'ready'"
        tx.run(f"UPDATE t_groups SET state = ? WHERE batch = ? AND state IN ({waiting})", (after, batch))
        tx.run(
            "UPDATE t_batches SET state = ?, adapter = ?, step = ?, reason = ? WHERE id = ?",
            (ack.outcome, ack.adapter, ack.step, ack.reason, batch),
        )
        if ack.advantages:
            ids = {
                eid: eid.split("/", 1)[1] for (eid,) in tx.all("SELECT eid FROM t_members WHERE batch = ?", (batch,))
            }
            found = [(batch, eid, ack.advantages[name]) for eid, name in ids.items() if name in ack.advantages]
            tx.update("t_members", ("batch", "eid"), ("advantage",), found)
        return True

    def drop_adapter_batches(self, adapter: str, now: float) -> int:
        """Groups with episodes sampled from an adapter that was taken back never train. → Groups dropped."""
        with self.db.write() as tx:
            name = f'"{adapter}"'
            sql = """UPDATE t_groups SET state = 'dropped' WHERE split = 'train'
                AND state IN ('forming', 'waiting_reward', 'ready', 'leased')
                AND id IN (SELECT grp FROM t_episodes WHERE grp IS NOT NULL AND strpos(adapters, ?) > 0)"""
            return tx.run(sql, (name,))
