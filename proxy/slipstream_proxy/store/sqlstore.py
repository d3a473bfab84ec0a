"""The store over any driver: what both implementations are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.contract import SqlResult
from slipstream_proxy.store.archive import Archive
from slipstream_proxy.store.counting import Counting
from slipstream_proxy.store.driver import Driver
from slipstream_proxy.store.ingest import Ingest
from slipstream_proxy.store.looking import Looking
from slipstream_proxy.store.protocol import Rules, Store


class SqlStore(Ingest, Looking, Counting, Archive):
    """``instance``: which proxy this is, where several share one database; spool positions are its own."""

    def __init__(self, db: Driver, rules: Rules, *, instance: str = "local") -> None:
        super().__init__(db, rules, instance=instance)
        self._apply_rules()

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        """One SELECT over the views episodes, calls, rewards, adapters. Raises ``QueryError`` with one line."""
        return self.db.sql(query, limit, timeout)

    def snapshot(self) -> None:
        """Make what is ingested safe in the database's own file; spool segments before ``positions()`` may go after."""
        self._scrub()
        self.db.settle()

    def close(self) -> None:
        self.db.close()


if TYPE_CHECKING:

    def _is_store(store: SqlStore) -> Store:
        return store
