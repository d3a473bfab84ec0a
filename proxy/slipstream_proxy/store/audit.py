"""Who changed what by hand: entries are added and never changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slipstream.contract import AuditEntry, AuditPage
from slipstream_proxy.store.codec import clean, cursor_of, dump, load, parse_cursor
from slipstream_proxy.store.driver import IN, Driver, Tx, given

COLUMNS = "id, ts, key, name, action, target, data"


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
            ("key = ?", wanted.key),
            ("action = ?", wanted.action),
            ("target = ?", wanted.target),
            ("ts >= ?", wanted.since),
            ("ts < ?", wanted.until),
        )
        if wanted.cursor:
            at, last = parse_cursor(wanted.cursor)
            tests.append("(ts < ? OR (ts = ? AND id < ?))")
            params += [at, at, last]
        sql = f"SELECT {COLUMNS} FROM t_audit WHERE {' AND '.join(tests) or 'TRUE'} ORDER BY ts DESC, id DESC LIMIT ?"
        with self.db.read() as tx:
            rows = tx.all(sql, (*params, wanted.limit + 1))
        entries = [
            AuditEntry(id=i, at=at, key=key, name=name, action=action, target=target, detail=load(data, {}))
            for i, at, key, name, action, target, data in rows[: wanted.limit]
        ]
        more = len(rows) > wanted.limit
        return AuditPage(entries=entries, next=cursor_of(entries[-1].at, entries[-1].id) if more else None)
