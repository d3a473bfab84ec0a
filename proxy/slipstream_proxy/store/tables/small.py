"""Small tables: values by name (what the judge's upstream answered, by a hash of what was asked, and what the gate
keeps), training events, and who changed what by hand: entries are added and never changed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipstream.contract import AuditEntry, AuditPage, Event
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.tables.driver import IN, Driver, Row, Tx, equal, given
from slipstream_proxy.store.tables.rows import clean, dump, go_on, load, page_of


class CacheTable:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def get(self, key: str) -> JsonObject | None:
        with self.db.read() as tx:
            rows = tx.all("SELECT value FROM t_cache WHERE id = ?", (key,))
        return load(rows[0][0]) if rows else None

    def begins(self, prefix: str) -> dict[str, JsonObject]:
        """Name → value, of all whose name begins so."""
        with self.db.read() as tx:
            rows = tx.all("SELECT id, value FROM t_cache WHERE starts_with(id, ?) ORDER BY id", (prefix,))
        return {name: load(value) for name, value in rows}

    def write(self, tx: Tx, key: str, value: JsonObject, now: float) -> None:
        """Unless a later value stands there."""
        found = tx.all("SELECT ts FROM t_cache WHERE id = ?", (key,))
        if not found:
            tx.insert("t_cache", [(key, dump(value), now)])
        elif found[0][0] <= now:
            tx.run("UPDATE t_cache SET value = ?, ts = ? WHERE id = ?", (dump(value), now, key))

    def trim(self, tx: Tx, prefix: str, keep: int) -> None:
        """Drop all entries whose name begins so, but the ``keep`` newest."""
        sql = "SELECT id FROM t_cache WHERE starts_with(id, ?) ORDER BY ts DESC, id DESC OFFSET ?"
        if old := [name for (name,) in tx.all(sql, (prefix, keep))]:
            tx.run(f"DELETE FROM t_cache WHERE id {IN}", (old,))


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


AUDIT_COLUMNS = "id, ts, key, name, action, target, data"


@dataclass(slots=True)
class AuditFilter:
    key: str | None = None
    action: str | None = None
    target: str | None = None
    since: float | None = None
    until: float | None = None
    cursor: str | None = None
    limit: int = 100


class AuditLog:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def append(self, tx: Tx, entry: AuditEntry) -> None:
        """Again changes nothing: an entry's id counts."""
        if not tx.all("SELECT 1 FROM t_audit WHERE id = ?", (entry.id,)):
            texts = [clean(text) for text in (entry.key, entry.name, entry.action, entry.target)]
            tx.insert("t_audit", [(entry.id, entry.at, *texts, dump(entry.detail))])

    def known(self, ids: Collection[str]) -> set[str]:
        """Those of these ids that have an entry."""
        with self.db.read() as tx:
            return {i for (i,) in tx.all(f"SELECT id FROM t_audit WHERE id {IN}", (list(ids),))}

    def page(self, wanted: AuditFilter) -> AuditPage:
        """The newest first. Raises ``ValueError`` for a cursor that is not ours."""
        tests, params = given(
            *equal(wanted, "key", "action", "target"),
            ("ts >= ?", wanted.since),
            ("ts < ?", wanted.until),
        )
        go_on(wanted.cursor, "ts", tests, params)
        sql = (
            f"SELECT {AUDIT_COLUMNS} FROM t_audit WHERE {' AND '.join(tests) or 'TRUE'} ORDER BY "
            "ts DESC, id DESC LIMIT ?"
        )
        with self.db.read() as tx:
            rows = tx.all(sql, (*params, wanted.limit + 1))
        entries = [
            AuditEntry(id=i, at=at, key=key, name=name, action=action, target=target, detail=load(data, {}))
            for i, at, key, name, action, target, data in rows
        ]
        shown, after = page_of(entries, wanted.limit, lambda entry: (entry.at, entry.id))
        return AuditPage(entries=list(shown), next=after)
