"""Calls: rows of episodes, which of them are stored, and what the next call of an episode may begin with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from slipstream_proxy.store import schema
from slipstream_proxy.store.call_rows import Packed, call_row, pack, repack, whole
from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.delta import Whole, cut
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.known_calls import EpisodeCalls, KnownCalls
from slipstream_proxy.store.rows import CALL_COLUMNS, CallRow, EpisodeRow
from slipstream_proxy.store.values import RecordedCall

TEXT_COLUMNS = ("messages", "tools", "reply", "sampling", "extra", "error")
TOKEN_COLUMNS = ", ".join(f"NULL AS {c}" if c in TEXT_COLUMNS else c for c in CallRow._fields)
"""``CALL_COLUMNS`` without the text."""
ANSWERED = ("ok", "superseded")
"""Outcomes of calls that a client may go on with."""


class CallTable:
    def __init__(self, db: Driver, days: DayTables) -> None:
        self.db = db
        self.days = days
        self.known = KnownCalls()

    def rows(self, tx: Tx, eps: Collection[EpisodeRow], columns: str = CALL_COLUMNS) -> dict[str, list[CallRow]]:
        """The episodes' calls, in order of their numbers."""
        found: dict[str, list[CallRow]] = defaultdict(list)
        if not eps:
            return found
        since, until = min(e.started for e in eps), max(e.last_at for e in eps)
        eids = [e.eid for e in eps]
        for table in self.days.tables(tx, since, until):
            # The times let whole row groups be passed over: the tables have no index on episodes everywhere.
            sql = f"SELECT {columns} FROM {table} WHERE eid {IN} AND ts >= ? AND ts <= ?"
            for values in tx.all(sql, (eids, since, until)):
                row = CallRow._make(values)
                found[row.eid].append(row)
        for rows in found.values():
            rows.sort(key=lambda r: r.number)
        return found

    def stored(self, tx: Tx, table: str, ids: list[str]) -> list[str]:
        """Those of these ids that stand in the table (``t_seen`` or a day's)."""
        if not ids:
            return []
        if self.db.shared:
            return [i for (i,) in tx.all(f"SELECT id FROM {table} WHERE id {IN}", (ids,))]
        # Ids sort by time, so that the range passes nearly all of a table over. (Another database may sort text in
        # another order.)
        sql = f"SELECT id FROM {table} WHERE id >= ? AND id <= ? AND id {IN}"
        return [i for (i,) in tx.all(sql, (min(ids), max(ids), ids))]

    def append(self, tx: Tx, ep: EpisodeRow, call: RecordedCall, number: int, *, new: bool) -> tuple[CallRow, Packed]:
        """The row of the episode's next call, without what it shares with an earlier one.

        ``new``: the episode has no stored calls.
        """
        packed = pack(call)
        day = schema.day_of(call.head.at)
        known = self.known.get(ep.eid)
        if known is None:
            known = EpisodeCalls() if new or not ep.calls else self._recall(tx, ep)
        extends = known.tree.extends(packed.asked)
        made = cut(packed.prompt, known.days[day])
        self._remember(known, day, call.head.id, packed, answered=call.head.outcome == "ok")
        self.known.put(ep.eid, known)
        return call_row(call, ep.eid, number, packed, made, extends), packed

    def _remember(self, known: EpisodeCalls, day: str, call: str, packed: Packed, *, answered: bool) -> None:
        known.add(day, packed.known(call))
        if answered:
            known.tree.add(packed.answered(call))

    def _recall(self, tx: Tx, ep: EpisodeRow) -> EpisodeCalls:
        """After a restart, or if many episodes have come since: from the table."""
        known = EpisodeCalls()
        wholes: dict[str, Whole] = {}
        for row in self.rows(tx, [ep])[ep.eid]:
            packed = repack(row, whole(row, wholes))
            self._remember(known, schema.day_of(row.ts), row.id, packed, answered=row.outcome in ANSWERED)
            known.tree.mark(row.extends)
        return known

    def supersede(self, tx: Tx, eids: Collection[str]) -> None:
        """Of one body's attempts in an episode all but the last are superseded, in whatever order they arrived."""
        for table in self.days.tables(tx) if eids else ():
            sql = f"""UPDATE {table} SET outcome = 'superseded', trainable = FALSE, reason = 'superseded'
                WHERE outcome <> 'superseded' AND body_hash <> '' AND eid {IN} AND EXISTS (SELECT 1 FROM {table} d
                WHERE d.eid = {table}.eid AND d.body_hash = {table}.body_hash AND d.attempt > {table}.attempt)"""
            tx.run(sql, (list(eids),))
