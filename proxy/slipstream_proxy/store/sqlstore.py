"""The store over any driver: what both implementations are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.contract import SqlResult
from slipstream_proxy.store import schema
from slipstream_proxy.store.archive import Archive
from slipstream_proxy.store.counting import Counting
from slipstream_proxy.store.driver import Driver, StoreError, Tx
from slipstream_proxy.store.ingest import Ingest
from slipstream_proxy.store.looking import Looking
from slipstream_proxy.store.protocol import Position, Rules, Store

OVERLAP = 60.0
"""Seconds of calls that a snapshot reads back once more: they come in the order in which they end."""


class SqlStore(Ingest, Looking, Counting, Archive):
    """``instance``: which proxy this is, where several share one database; spool positions are its own."""

    def __init__(self, db: Driver, rules: Rules, *, instance: str = "local") -> None:
        super().__init__(db, rules, instance=instance)
        self._verified = 0.0
        """Calls from then on have not been read back."""
        self._apply_rules()

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        """One SELECT over the views episodes, calls, rewards, adapters. Raises ``QueryError`` with one line."""
        return self.db.sql(query, limit, timeout)

    def snapshot(self) -> None:
        """Make what is ingested safe in the database's own file, and read it back; spool segments before ``positions()`` may go after.

        What came since the last snapshot is read whole, with all columns. Raises whatever says that it isn't there.
        """
        self._scrub()
        if self.db.shared:
            self.db.settle()
            return
        before, since = self.positions(), self._verified
        with self.db.read() as tx:
            expected = self._sums(tx, since)
        self.db.settle()
        with self.db.reread() as tx:
            there = self._positions(tx)
            if any(there.get(w, Position(-1, 0)) < p for w, p in before.items()):
                raise StoreError(f"the snapshot holds positions {there}, and {before} were ingested")
            for table, (count, size) in self._sums(tx, since).items():
                if (count, size) < expected.get(table, (0, 0)):
                    raise StoreError(
                        f"the snapshot's {table} has {count} rows of {size} bytes, {expected[table]} were ingested"
                    )
            self._verified = (
                max((at for (at,) in tx.all("SELECT max(last_at) FROM t_episodes") if at), default=since) - OVERLAP
            )

    def _sums(self, tx: Tx, since: float) -> dict[str, tuple[int, int]]:
        """Rows of each table of calls since then, and how many bytes their columns hold: that reads all of them."""
        texts = [f"coalesce(length({c}), 0)" for c, kind in schema.CALLS.items() if kind == "TEXT"]
        blobs = [f"coalesce(octet_length({c}), 0)" for c, kind in schema.CALLS.items() if kind == "BYTEA"]
        size = " + ".join([*texts, *blobs])
        sums = {}
        for table in self._day_tables(tx, since):
            ((count, total),) = tx.all(
                f"SELECT count(*), coalesce(sum({size}), 0) FROM {table} WHERE ts >= ?", (since,)
            )
            sums[table] = (int(count), int(total))
        return sums

    def close(self) -> None:
        self.db.close()


if TYPE_CHECKING:

    def _is_store(store: SqlStore) -> Store:
        return store
