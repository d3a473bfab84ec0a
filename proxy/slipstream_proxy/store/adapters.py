"""Adapters, with a revision by which proxies that share a store see each other's changes."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.contract import Adapter, Event
from slipstream_proxy.store.codec import clean, dump, load
from slipstream_proxy.store.driver import Driver, Tx
from slipstream_proxy.store.events import EventLog
from slipstream_proxy.store.meta import get_meta, set_meta
from slipstream_proxy.store.pins import PinTable

REVISION = "adapters"
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
        set_meta(tx, REVISION, str(self._revision(tx) + 1))

    def replay(self, tx: Tx, adapter: Adapter) -> None:
        """An adapter out of the spool.

        Where proxies share a store its word counts: this may have waited while another proxy decided.
        """
        if not (self.db.shared and tx.all("SELECT 1 FROM t_adapters WHERE name = ?", (adapter.name,))):
            self.write(tx, adapter)

    def _revision(self, tx: Tx) -> int:
        return int(get_meta(tx, REVISION) or 0)

    def _load(self, tx: Tx) -> list[Adapter]:
        rows = tx.all("SELECT body FROM t_adapters ORDER BY model, version")
        pins = self.pins.count(tx)
        found = [Adapter.model_validate(load(body)) for (body,) in rows]
        return [a.model_copy(update={"episodes": pins.get(a.name, 0)}) for a in found]
