"""Adapters, with a revision by which proxies that share a store see each other's changes; and which of them answers an
episode: all its calls have the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slipstream.contract import Adapter, Event
from slipstream_proxy.store.learning.rewards import OutcomeLog
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.memory import ExactFigure
from slipstream_proxy.store.tables.rows import PinRow, clean, dump, eid_of, load, tombstone_of
from slipstream_proxy.store.tables.small import EventLog
from slipstream_proxy.store.tables.tallies import get_meta, set_meta
from slipstream_proxy.store.values import Pin, PinAsk

ROWS_PER_STATEMENT = 1_000
"""Of one statement."""
PINS_PER_LOOKUP = 512
"""Pins whose episodes are looked up together: an index finds these."""


class PinTable:
    def __init__(self, db: Driver, outcomes: OutcomeLog) -> None:
        self.db = db
        self.outcomes = outcomes
        self._open: ExactFigure[dict[str, int]] = ExactFigure()
        self._expired: tuple[int | None, float] = (None, 0.0)
        """Until when pins were looked through, and how the store stood then."""

    def pin_many(self, asks: Sequence[PinAsk]) -> list[Pin]:
        """The episodes' pins, in one transaction: those stored, else these. Proxies agree by the first to ask. Of a
        forgotten episode none is stored.
        """
        wanted: dict[str, PinAsk] = {}
        for ask in sorted(asks, key=lambda ask: not ask.kept):
            wanted.setdefault(eid_of(ask.key, ask.episode), ask)
        with self.db.read() as tx:
            stored = self._stored(tx, wanted)
        missing = {eid: ask for eid, ask in wanted.items() if eid not in stored and ask.kept}
        if missing:
            with self.db.write(serial=False) as tx:
                stored |= self._stored(tx, missing)
                gone = self._forgotten(tx, missing)
                asked = {eid: ask for eid, ask in missing.items() if eid not in stored and eid not in gone}
                self._insert(tx, asked)
                stored |= self._stored(tx, missing)
                self._log(tx, {eid: ask for eid, ask in asked.items() if stored[eid].chances == ask.chances})
        return [stored.get(eid_of(a.key, a.episode)) or Pin(a.adapter, a.arm, a.chances) for a in asks]

    def _forgotten(self, tx: Tx, eids: Collection[str]) -> set[str]:
        """Those of these episodes that have a tombstone."""
        tombstones = {tombstone_of(eid): eid for eid in eids}
        sql = f"SELECT eid FROM t_episodes WHERE state = 'deleted' AND eid {IN}"
        return {tombstones[tombstone] for (tombstone,) in tx.all(sql, (list(tombstones),))}

    def _stored(self, tx: Tx, eids: Collection[str]) -> dict[str, Pin]:
        sql = f"SELECT eid, adapter, arm, coalesce(chances, '') FROM t_pins WHERE eid {IN}"
        return {eid: Pin(*rest) for eid, *rest in tx.all(sql, (list(eids),))}

    def _insert(self, tx: Tx, asks: Mapping[str, PinAsk]) -> None:
        rows = [PinRow(eid, a.model, a.adapter, a.arm, a.now, chances=a.chances) for eid, a in asks.items()]
        if not self.db.shared:
            tx.insert("t_pins", rows)
            return
        rows.sort()  # two proxies that insert the same ones wait for each other in one order
        for begin in range(0, len(rows), ROWS_PER_STATEMENT):
            some = rows[begin : begin + ROWS_PER_STATEMENT]
            values = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(some))
            tx.run(f"INSERT INTO t_pins VALUES {values}{self.db.on_conflict}", [v for row in some for v in row])

    def _log(self, tx: Tx, asks: Mapping[str, PinAsk]) -> None:
        """Those that are evidence: there was something to choose."""
        rows = [
            (PinRow(eid, a.model, a.adapter, a.arm, a.now, chances=a.chances), f"{a.key}/{a.task}" if a.task else "")
            for eid, a in asks.items()
            if a.chances
        ]
        self.outcomes.write(tx, 0.0, assigned=rows)

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
        for begin in range(0, len(old), PINS_PER_LOOKUP):
            some = old[begin : begin + PINS_PER_LOOKUP]
            there = {eid for (eid,) in tx.all(f"SELECT eid FROM t_episodes WHERE eid {IN}", (some,))}
            self.release(tx, [eid for eid in some if eid not in there])


REVISION_KEY = "adapters"
"""In ``t_meta``: how often an adapter was put."""


class AdapterTable:
    def __init__(self, db: Driver, events: EventLog, pins: PinTable) -> None:
        self.db = db
        self.events = events
        self.pins = pins

    def since(self, revision: int) -> tuple[int, list[Adapter]] | None:
        """All adapters and the revision they stand at; None: nothing has been put since ``revision``."""
        with self.db.read() as tx:
            now = self._revision(tx)
            return None if now == revision else (now, self._load(tx))

    def swap(self, revision: int, changed: Sequence[Adapter], events: Sequence[Event]) -> int | None:
        """Put changes that belong together, with their events.

        → The new revision; None, and nothing is put: another proxy was first.
        """
        with self.db.write() as tx:
            if self._revision(tx) != revision:
                return None
            for adapter in changed:
                self.write(tx, adapter)
            for event in events:
                self.events.append(tx, event)
            return self._revision(tx)

    def write(self, tx: Tx, adapter: Adapter) -> None:
        body = dump(adapter.model_dump(mode="json"))
        state, reason = str(adapter.state), clean(adapter.reason)
        values = (adapter.model, adapter.version, state, adapter.created, adapter.decided, body, reason)
        sets = "model = ?, version = ?, state = ?, created = ?, decided = ?, body = ?, reason = ?"
        if not tx.run(f"UPDATE t_adapters SET {sets} WHERE name = ?", (*values, adapter.name)):
            tx.insert("t_adapters", [(adapter.name, *values)])
        if adapter.batches:  # one that is published late: their acks could not name it
            sql = f"UPDATE t_batches SET adapter = ? WHERE adapter IS NULL AND state = 'trained' AND id {IN}"
            tx.run(sql, (adapter.name, adapter.batches))
        set_meta(tx, REVISION_KEY, str(self._revision(tx) + 1))

    def replay(self, tx: Tx, adapter: Adapter) -> None:
        """An adapter out of the spool.

        Where proxies share a store its word counts: this may have waited while another proxy decided.
        """
        if not (self.db.shared and tx.all("SELECT 1 FROM t_adapters WHERE name = ?", (adapter.name,))):
            self.write(tx, adapter)

    def _revision(self, tx: Tx) -> int:
        return int(get_meta(tx, REVISION_KEY) or 0)

    def _load(self, tx: Tx) -> list[Adapter]:
        rows = tx.all("SELECT body FROM t_adapters ORDER BY model, version")
        pins = self.pins.count(tx)
        found = [Adapter.model_validate(load(body)) for (body,) in rows]
        return [a.model_copy(update={"episodes": pins.get(a.name, 0)}) for a in found]
