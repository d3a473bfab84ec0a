"""Calls stand in one table per UTC day: which days there are, and the table of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slipstream_proxy.store import schema
from slipstream_proxy.store.driver import Driver, Tx
from slipstream_proxy.store.rows import EpisodeRow
from slipstream_proxy.store.tallies import drop_tallies


class DayTables:
    def __init__(self, db: Driver) -> None:
        self.db = db
        with db.read() as tx:
            self._days = {day for (day,) in tx.all("SELECT day FROM t_days")}

    def all(self) -> list[str]:
        """Days with calls, ``YYYY-MM-DD``, oldest first."""
        with self.db.read() as tx:
            return [day for (day,) in tx.all("SELECT day FROM t_days ORDER BY day")]

    def tables(self, tx: Tx, since: float | None = None, until: float | None = None) -> list[str]:
        """Tables of the days from ``since`` to ``until`` that there are, oldest first."""
        days = {day for (day,) in tx.all("SELECT day FROM t_days")} if self.db.shared else self._days
        first = "" if since is None else schema.day_of(since)
        last = "~" if until is None else schema.day_of(until)
        return [schema.table_of(day) for day in sorted(days) if first <= day <= last]

    def tables_of(self, tx: Tx, eps: Collection[EpisodeRow]) -> list[str]:
        """Tables that may hold calls of these episodes."""
        return self.tables(tx, min(e.started for e in eps), max(e.last_at for e in eps)) if eps else []

    def ensure(self, days: Iterable[str]) -> None:
        """Make the tables of these days where they are missing, and the view over all of them."""
        missing = sorted(set(days) - self._days)
        if not missing:
            return
        with self.db.write() as tx:
            known = {day for (day,) in tx.all("SELECT day FROM t_days")}
            for day in missing:
                if day not in known:
                    for statement in schema.create_sql(schema.table_of(day), keyed=self.db.shared):
                        tx.run(statement)
                    tx.run("INSERT INTO t_days VALUES (?)", (day,))
            self._views(tx, known | set(missing))
        self._days |= known | set(missing)
        self.db.settle()

    def drop(self, day: str, archived: int | None = None) -> int:
        """Drop a day's calls, text and tokens. → Calls dropped.

        ``archived``: how many there must be; with another number nothing is dropped.
        """
        with self.db.write() as tx:
            days = {d for (d,) in tx.all("SELECT day FROM t_days")}
            if day not in days:
                return 0
            table = schema.table_of(day)
            if self.db.shared:
                tx.run(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            ((count,),) = tx.all(f"SELECT count(*) FROM {table}")
            if archived is not None and count != archived:
                return 0
            self._views(tx, days - {day})
            tx.run(f"DROP TABLE {table}")
            tx.run("DELETE FROM t_days WHERE day = ?", (day,))
            drop_tallies(tx, table)
        self._days.discard(day)
        self.db.settle()
        return int(count)

    def _views(self, tx: Tx, days: Collection[str]) -> None:
        for statement in schema.views_sql(days, keyed=self.db.shared):
            tx.run(statement)
