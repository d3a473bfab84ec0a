"""Values by name: what the judge's upstream answered, by a hash of what was asked; and what the gate keeps."""

from __future__ import annotations

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.codec import dump, load
from slipstream_proxy.store.driver import IN, Driver, Tx


class CacheTable:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def get(self, key: str) -> JsonObject | None:
        with self.db.read() as tx:
            rows = tx.all("SELECT value FROM t_cache WHERE id = ?", (key,))
        return load(rows[0][0]) if rows else None

    def put(self, key: str, value: JsonObject, now: float) -> None:
        with self.db.write() as tx:
            self.write(tx, key, value, now)

    def write(self, tx: Tx, key: str, value: JsonObject, now: float) -> None:
        text = dump(value)
        if not tx.run("UPDATE t_cache SET value = ?, ts = ? WHERE id = ?", (text, now, key)):
            tx.insert("t_cache", [(key, text, now)])

    def trim(self, prefix: str, keep: int) -> int:
        """Drop all entries whose name begins so, but the ``keep`` newest. → How many they were."""
        with self.db.write() as tx:
            sql = "SELECT id FROM t_cache WHERE starts_with(id, ?) ORDER BY ts DESC, id DESC OFFSET ?"
            old = [name for (name,) in tx.all(sql, (prefix, keep))]
            return tx.run(f"DELETE FROM t_cache WHERE id {IN}", (old,)) if old else 0
