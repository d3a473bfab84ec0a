"""Which adapter answers an episode: all its calls have the same one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.figures import ExactFigure
from slipstream_proxy.store.rows import PinRow, eid_of
from slipstream_proxy.store.values import Pin, PinAsk

ROWS = 1_000
"""Of one statement."""
FEW = 512
"""Pins whose episodes are looked up together: an index finds these."""


class PinTable:
    def __init__(self, db: Driver) -> None:
        self.db = db
        self._open: ExactFigure[dict[str, int]] = ExactFigure()
        self._expired: tuple[int | None, float] = (None, 0.0)
        """Until when pins were looked through, and how the store stood then."""

    def pin_many(self, asks: Sequence[PinAsk]) -> list[Pin]:
        """The episodes' pins, in one transaction: those stored, else these. Proxies agree by the first to ask."""
        wanted: dict[str, PinAsk] = {}
        for ask in asks:
            wanted.setdefault(eid_of(ask.key, ask.episode), ask)
        with self.db.read() as tx:
            stored = self._stored(tx, wanted)
        missing = {eid: ask for eid, ask in wanted.items() if eid not in stored}
        if missing:
            with self.db.write(serial=False) as tx:
                stored |= self._stored(tx, missing)
                self._insert(tx, {eid: ask for eid, ask in missing.items() if eid not in stored})
                stored |= self._stored(tx, missing)
        return [stored[eid_of(ask.key, ask.episode)] for ask in asks]

    def _stored(self, tx: Tx, eids: Collection[str]) -> dict[str, Pin]:
        sql = f"SELECT eid, adapter, arm, coalesce(chances, '') FROM t_pins WHERE eid {IN}"
        return {eid: Pin(*rest) for eid, *rest in tx.all(sql, (list(eids),))}

    def _insert(self, tx: Tx, asks: Mapping[str, PinAsk]) -> None:
        rows = [PinRow(eid, a.model, a.adapter, a.arm, a.now, chances=a.chances) for eid, a in asks.items()]
        if not self.db.shared:
            tx.insert("t_pins", rows)
            return
        rows.sort()  # two proxies that insert the same ones wait for each other in one order
        for begin in range(0, len(rows), ROWS):
            some = rows[begin : begin + ROWS]
            values = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(some))
            tx.run(f"INSERT INTO t_pins VALUES {values}{self.db.on_conflict}", [v for row in some for v in row])

    def open(self) -> dict[str, int]:
        """Adapter → open episodes."""
        return dict(self._open.get(self.db.stand(), self._counted))

    def _counted(self) -> dict[str, int]:
        with self.db.read() as tx:
            return self.count(tx)

    def count(self, tx: Tx) -> dict[str, int]:
        return dict(tx.all("SELECT adapter, count(*) FROM t_pins WHERE active GROUP BY adapter"))

    def move(self, old: str, new: str) -> int:
        """Open episodes of an adapter go on with another one. → How many."""
        with self.db.write() as tx:
            return tx.run("UPDATE t_pins SET adapter = ? WHERE adapter = ? AND active", (new, old))

    def put(self, tx: Tx, pins: Mapping[str, PinRow]) -> None:
        """Absent pins are put, one that a call says has moved is changed."""
        if not pins:
            return
        sql = f"SELECT eid, adapter, arm FROM t_pins WHERE eid {IN}"
        known = {eid: (adapter, arm) for eid, adapter, arm in tx.all(sql, (list(pins),))}
        tx.insert("t_pins", [row for eid, row in pins.items() if eid not in known])
        moved = [
            (eid, row.adapter, row.arm)
            for eid, row in pins.items()
            if eid in known and known[eid] != (row.adapter, row.arm)
        ]
        tx.update("t_pins", ("eid",), ("adapter", "arm"), moved)

    def release(self, tx: Tx, eids: Collection[str]) -> None:
        """The episodes ended: their adapter need not be kept loaded for them."""
        if eids:
            tx.run(f"UPDATE t_pins SET active = FALSE WHERE active AND eid {IN}", (list(eids),))

    def hold(self, tx: Tx, eids: Collection[str]) -> None:
        """The episodes go on: their adapter is needed again."""
        if eids:
            tx.run(f"UPDATE t_pins SET active = TRUE WHERE NOT active AND eid {IN}", (list(eids),))

    def expire(self, tx: Tx, before: float) -> None:
        """A pin of before then whose episode never had a call is let go."""
        stand = self.db.stand()
        after = self._expired[1] if stand is not None and stand == self._expired[0] else 0.0
        self._expired = stand, before
        sql = "SELECT eid FROM t_pins WHERE active AND ts < ? AND ts >= ?"
        old = [eid for (eid,) in tx.all(sql, (before, after))]
        for begin in range(0, len(old), FEW):
            some = old[begin : begin + FEW]
            there = {eid for (eid,) in tx.all(f"SELECT eid FROM t_episodes WHERE eid {IN}", (some,))}
            self.release(tx, [eid for eid in some if eid not in there])
