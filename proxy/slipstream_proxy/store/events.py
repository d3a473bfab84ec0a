"""Training events, in order."""

from __future__ import annotations

from slipstream.contract import Event
from slipstream_proxy.store.codec import dump, load
from slipstream_proxy.store.driver import Driver, Tx


class EventLog:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def add(self, event: Event) -> int:
        """→ The event's id; ids ascend."""
        with self.db.write() as tx:
            return self.append(tx, event)

    def append(self, tx: Tx, event: Event) -> int:
        number = self.db.next_seq(tx, 1)
        tx.insert("t_events", [(number, event.at, event.kind, dump(event.data))])
        return number

    def page(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events whose id is above ``after``, in order."""
        with self.db.read() as tx:
            rows = tx.all("SELECT id, ts, kind, data FROM t_events WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
        return [Event(id=i, at=at, kind=kind, data=load(data)) for i, at, kind, data in rows]
