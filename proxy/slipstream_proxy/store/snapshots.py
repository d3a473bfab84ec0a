"""A snapshot makes what is ingested safe in the database's own file, and reads it back."""

from __future__ import annotations

from slipstream_proxy.store import schema
from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.driver import Driver, StoreError, Tx
from slipstream_proxy.store.positions import SpoolPositions
from slipstream_proxy.store.values import Position

OVERLAP = 60.0
"""Seconds of calls that a snapshot reads back once more: they come in the order in which they end."""


class Snapshots:
    def __init__(self, db: Driver, days: DayTables, positions: SpoolPositions) -> None:
        self.db = db
        self.days = days
        self.positions = positions
        self._verified = 0.0
        """Calls from then on have not been read back."""

    def take(self) -> None:
        """What came since the last snapshot is read whole, with all columns.

        Raises whatever says that it isn't there.
        """
        if self.db.shared:
            self.db.settle()
            return
        since = self._verified
        with self.db.read() as tx:
            before = self.positions.all(tx)
        with self.db.read() as tx:
            expected = self._sums(tx, since)
        self.db.settle()
        with self.db.reread() as tx:
            there = self.positions.all(tx)
            if any(there.get(w, Position(-1, 0)) < p for w, p in before.items()):
                raise StoreError(f"the snapshot holds positions {there}, and {before} were ingested")
            for table, (count, size) in self._sums(tx, since).items():
                if (count, size) < expected.get(table, (0, 0)):
                    raise StoreError(
                        f"the snapshot's {table} has {count} rows of {size} bytes, {expected[table]} were ingested"
                    )
            ends = [at for (at,) in tx.all("SELECT max(last_at) FROM t_episodes") if at]
            self._verified = max(ends, default=since) - OVERLAP

    def _sums(self, tx: Tx, since: float) -> dict[str, tuple[int, int]]:
        """Rows of each table of calls since then, and how many bytes their columns hold: that reads all of them."""
        texts = [f"coalesce(length({c}), 0)" for c, kind in schema.CALLS.items() if kind == "TEXT"]
        blobs = [f"coalesce(octet_length({c}), 0)" for c, kind in schema.CALLS.items() if kind == "BYTEA"]
        size = " + ".join([*texts, *blobs])
        sums = {}
        for table in self.days.tables(tx, since):
            sql = f"SELECT count(*), coalesce(sum({size}), 0) FROM {table} WHERE ts >= ?"
            ((count, total),) = tx.all(sql, (since,))
            sums[table] = (int(count), int(total))
        return sums
