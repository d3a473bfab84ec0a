"""Adapters, training events, and the judge's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.contract import Adapter, Event
from slipstream_proxy.store.base import Base
from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.rows import clean, dump, load

REVISION = "adapters"
"""In ``t_meta``: how often an adapter was put."""


class Registry(Base):
    def put_adapter(self, adapter: Adapter) -> None:
        """Insert or replace what is known of an adapter."""
        with self.db.write() as tx:
            self._put_adapter(tx, adapter)

    def adapters_since(self, revision: int) -> tuple[int, list[Adapter]] | None:
        """All adapters and the revision they stand at; None: nothing has been put since ``revision``."""
        with self.db.read() as tx:
            now = self._revision(tx)
            return None if now == revision else (now, self._adapters(tx))

    def swap_adapters(self, revision: int, changed: Sequence[Adapter], events: Sequence[Event]) -> int | None:
        """Put changes that belong together, with their events. → The new revision; None, and nothing is put: something has been since ``revision``."""
        with self.db.write() as tx:
            if self._revision(tx) != revision:
                return None
            for adapter in changed:
                self._put_adapter(tx, adapter)
            for event in events:
                self._add_event(tx, event)
            return self._revision(tx)

    def _revision(self, tx: Tx) -> int:
        return int(self._meta(tx, REVISION) or 0)

    def _put_adapter(self, tx: Tx, adapter: Adapter) -> None:
        body = dump(adapter.model_dump(mode="json"))
        values = (adapter.model, adapter.version, str(adapter.state), adapter.created, adapter.decided, body, clean(adapter.reason))  # fmt: skip
        sets = "model = ?, version = ?, state = ?, created = ?, decided = ?, body = ?, reason = ?"
        sql = f"UPDATE t_adapters SET {sets} WHERE name = ?"
        if not tx.run(sql, (*values, adapter.name)):
            tx.insert("t_adapters", [(adapter.name, *values)])
        self._set_meta(tx, REVISION, str(self._revision(tx) + 1))

    def adapters(self) -> list[Adapter]:
        """All that ever were, oldest first; ``episodes`` is counted anew."""
        with self.db.read() as tx:
            return self._adapters(tx)

    def _adapters(self, tx: Tx) -> list[Adapter]:
        rows = tx.all("SELECT body FROM t_adapters ORDER BY model, version")
        pins: dict[str, int] = dict(tx.all("SELECT adapter, count(*) FROM t_pins WHERE active GROUP BY adapter"))
        found = [Adapter.model_validate(load(body)) for (body,) in rows]
        return [a.model_copy(update={"episodes": pins.get(a.name, 0)}) for a in found]

    def add_event(self, event: Event) -> int:
        """→ The event's id; ids ascend."""
        with self.db.write() as tx:
            return self._add_event(tx, event)

    def _add_event(self, tx: Tx, event: Event) -> int:
        number = self.db.next_seq(tx, 1)
        tx.insert("t_events", [(number, event.at, event.kind, dump(event.data))])
        return number

    def events(self, after: int = 0, limit: int = 1000) -> list[Event]:
        with self.db.read() as tx:
            rows = tx.all("SELECT id, ts, kind, data FROM t_events WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
        return [Event(id=i, at=at, kind=kind, data=load(data)) for i, at, kind, data in rows]

    def cache_get(self, key: str) -> dict[str, Any] | None:
        with self.db.read() as tx:
            rows = tx.all("SELECT value FROM t_cache WHERE id = ?", (key,))
        return load(rows[0][0]) if rows else None

    def cache_put(self, key: str, value: dict[str, Any], now: float) -> None:
        with self.db.write() as tx:
            self._cache_put(tx, key, value, now)

    def _cache_put(self, tx: Tx, key: str, value: dict[str, Any], now: float) -> None:
        text = dump(value)
        if not tx.run("UPDATE t_cache SET value = ?, ts = ? WHERE id = ?", (text, now, key)):
            tx.insert("t_cache", [(key, text, now)])
