"""Training events, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.contract import Event
from slipstream_proxy.store.codec import dump, load
from slipstream_proxy.store.driver import IN, Driver, Row, Tx


class EventLog:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def append(self, tx: Tx, event: Event) -> int:
        """→ The event's id; ids ascend."""
        number = self.db.next_seq(tx, 1)
        tx.insert("t_events", [(number, event.at, event.kind, dump(event.data))])
        return number

    def latest(self, kinds: Sequence[str]) -> Event | None:
        """The last event of one of these kinds."""
        sql = f"SELECT id, ts, kind, data FROM t_events WHERE kind {IN} ORDER BY id DESC LIMIT 1"
        with self.db.read() as tx:
            return next(map(_event, tx.all(sql, (list(kinds),))), None)

    def within(self, kinds: Sequence[str], since: float | None, until: float | None, limit: int) -> list[Event]:
        """The newest events of these kinds in a span of time, oldest first."""
        sql = f"""SELECT id, ts, kind, data FROM t_events WHERE kind {IN} AND ts >= ? AND ts < ?
            ORDER BY ts DESC, id DESC LIMIT ?"""
        span = (-math.inf if since is None else since, math.inf if until is None else until)
        with self.db.read() as tx:
            rows = tx.all(sql, (list(kinds), *span, limit))
        return [_event(row) for row in reversed(rows)]

    def page(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events whose id is above ``after``, in order."""
        with self.db.read() as tx:
            rows = tx.all("SELECT id, ts, kind, data FROM t_events WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
        return [_event(row) for row in rows]


def _event(row: Row) -> Event:
    number, at, kind, data = row
    return Event(id=number, at=at, kind=kind, data=load(data))
