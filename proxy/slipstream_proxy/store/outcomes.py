"""Rewards in the order in which they became final: what the gate reads, a few at a time.

An episode is written down once: when it is done and its combined reward is known for the first time. Later corrections
change the episode and what trains, not this log. So the order is the same for every proxy and after a restart, and
evidence never looks back. What the gate has read goes after ``LOOK_BACK`` more, so the log does not grow with the
store.
"""

from __future__ import annotations

from collections.abc import Iterable

from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.likeness import likeness_of
from slipstream_proxy.store.rows import EpisodeRow
from slipstream_proxy.store.values import Outcome

LOOK_BACK = 50_000
"""An episode that was done, went on, and is done again is found among so many newest numbers."""


class OutcomeLog:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def note(self, tx: Tx, eps: Iterable[EpisodeRow], now: float) -> None:
        """Write down those of these that are final and were not before."""
        final = {
            ep.eid: ep
            for ep in eps
            if ep.state == "done" and ep.reward is not None and ep.adapter and ep.split == "train"
        }
        if not final:
            return
        sql = f"SELECT eid FROM t_outcomes WHERE seq > (SELECT coalesce(max(seq), 0) - ? FROM t_outcomes) AND eid {IN}"
        for (eid,) in tx.all(sql, (LOOK_BACK, list(final))):
            del final[eid]
        first = self.db.next_seq(tx, len(final)) if final else 0
        rows = [
            (first + i, ep.eid, ep.model, ep.adapter, ep.arm, ep.chances or "", _likeness(ep), ep.reward, now)
            for i, ep in enumerate(sorted(final.values(), key=lambda ep: (ep.ended or 0.0, ep.eid)))
        ]
        tx.insert("t_outcomes", rows)

    def since(self, model: str, after: int, limit: int = 2000) -> list[Outcome]:
        """A trained model's final rewards in the order in which they became final: those numbered above ``after``."""
        sql = """SELECT seq, adapter, arm, chances, task, reward, ts FROM t_outcomes WHERE seq > ? AND model = ?
            ORDER BY seq LIMIT ?"""
        with self.db.read() as tx:
            return [Outcome(*row) for row in tx.all(sql, (after, model, limit))]

    def last(self, model: str, count: int) -> int:
        """The number after which a model has ``count`` outcomes left; 0 if it has no more than that."""
        sql = "SELECT seq FROM t_outcomes WHERE model = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
        with self.db.read() as tx:
            rows = tx.all(sql, (model, count))
        return int(rows[0][0]) if rows else 0

    def prune(self, model: str, read: int) -> int:
        """Drop a model's up to number ``read`` that ``note`` would not look at any more. → How many they were."""
        with self.db.write() as tx:
            ((newest,),) = tx.all("SELECT coalesce(max(seq), 0) FROM t_outcomes")
            old = min(read, int(newest) - LOOK_BACK)
            return tx.run("DELETE FROM t_outcomes WHERE model = ? AND seq <= ?", (model, old)) if old > 0 else 0


def _likeness(ep: EpisodeRow) -> str:
    """What makes episodes comparable: their task, else the prompt that they have in common."""
    name = ep.task if ep.grouped else likeness_of(ep.alike)
    return f"{ep.key}/{name}" if name else ""
