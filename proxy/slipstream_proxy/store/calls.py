"""Calls: rows of episodes, which of them are stored, and what the next call of an episode may begin with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from slipstream_proxy.store import schema
from slipstream_proxy.store.call_list import CallList
from slipstream_proxy.store.call_rows import Packed, call_row, pack, repack, stamp_of
from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.delta import Known, cut
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.known_calls import EpisodeCalls, KnownCalls
from slipstream_proxy.store.order import StoreClock, place
from slipstream_proxy.store.rows import CALL_COLUMNS, CallRow, EpisodeRow
from slipstream_proxy.store.tallies import TallyTable
from slipstream_proxy.store.tree import ConversationTree
from slipstream_proxy.store.values import RecordedCall

TEXT_COLUMNS = ("messages", "tools", "reply", "sampling", "extra", "error")
TOKEN_COLUMNS = ", ".join(f"NULL AS {c}" if c in TEXT_COLUMNS else c for c in CallRow._fields)
"""``CALL_COLUMNS`` without the text."""
Pending = Mapping[str, list[CallRow]]
"""Day → rows of the running batch, not in the tables yet."""
ANSWERED = ("ok", "superseded")
"""Outcomes of calls that a client may go on with."""


class CallTable:
    def __init__(self, db: Driver, days: DayTables, tallies: TallyTable) -> None:
        self.db = db
        self.days = days
        self.tallies = tallies
        self.known = KnownCalls()
        self._clock = StoreClock()

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

    def some(self, tx: Tx, ep: EpisodeRow, first: int, most: int) -> list[CallRow]:
        """The episode's calls from number ``first`` on, at most ``most``, in order."""
        found: list[CallRow] = []
        for table in self.days.tables_of(tx, [ep]):
            sql = f"""SELECT {CALL_COLUMNS} FROM {table} WHERE eid = ? AND ts >= ? AND ts <= ? AND number >= ?
                ORDER BY number LIMIT ?"""
            found += map(CallRow._make, tx.all(sql, (ep.eid, ep.started, ep.last_at, first, most)))
        return sorted(found, key=lambda r: r.number)[:most]

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

    def append(
        self, tx: Tx, ep: EpisodeRow, call: RecordedCall, number: int, pending: Pending, *, new: bool
    ) -> tuple[CallRow, Packed]:
        """The row of the episode's next call, without what it shares with an earlier one.

        ``pending`` are the rows of this batch so far. ``new``: the episode has no stored calls. The row's number is
        less than ``number`` where several proxies write and the call was acknowledged before others: then
        ``make_room`` must follow.
        """
        packed = pack(call)
        day = schema.day_of(call.head.at)
        known = self.known.get(ep.eid)
        if known is None or (self.db.shared and not new and known.count != ep.calls):
            known = EpisodeCalls() if new or not ep.calls else self._recall(tx, ep, pending)
        extends = known.tree.extends(packed.asked)
        bases: Sequence[Known] = known.days[day]
        stamp = self._clock.stamp(tx, call.head) if self.db.shared else None
        if stamp is not None and len(known.stamps) == number:
            number = place(
                known.stamps, stamp, extends, lambda calls: self._extending(tx, ep, pending, packed, stamp.call) & calls
            )
            if number < len(known.stamps):  # a call is put together from calls of lower numbers
                earlier = {s.call for s in known.stamps[:number]}
                bases = [base for base in bases if base.id in earlier]
            known.stamps.insert(number, stamp)
        made = cut(packed.prompt, bases)
        self._remember(known, day, call.head.id, packed, answered=call.head.outcome == "ok")
        known.count = ep.calls + 1
        self.known.put(ep.eid, known)
        return call_row(call, ep.eid, number, packed, made, extends, stamp), packed

    def make_room(self, tx: Tx, ep: EpisodeRow, row: CallRow, packed: Packed, pending: Pending) -> None:
        """Before a call with the number of one that is stored: the later ones move up, and go on with it if they do."""
        before = {r.id for r, _ in self._stored(tx, ep, pending) if r.number < row.number}
        extending = self._extending(tx, ep, pending, packed, row.id) if row.outcome == "ok" else set()

        def moved(old: CallRow) -> CallRow:
            if old.eid != ep.eid or old.number < row.number:
                return old
            goes_on = old.id in extending and (old.extends is None or old.extends in before)
            return old._replace(number=old.number + 1, extends=row.id if goes_on else old.extends)

        for rows in pending.values():
            rows[:] = [moved(old) for old in rows]
        for table in self.days.tables_of(tx, [ep]):
            sql = f"""UPDATE {table} SET number = number + 1, extends = CASE WHEN id {IN} AND (extends IS NULL OR
                extends {IN}) THEN ? ELSE extends END WHERE eid = ? AND number >= ?"""
            tx.run(sql, (list(extending), list(before), row.id, ep.eid, row.number))

    def _extending(self, tx: Tx, ep: EpisodeRow, pending: Pending, packed: Packed, call: str) -> set[str]:
        """The episode's other calls that begin with this one and its reply."""
        tree = ConversationTree()
        tree.add(packed.answered(call))
        return {row.id for row, other in self._stored(tx, ep, pending) if tree.extends(other.asked)}

    def _remember(self, known: EpisodeCalls, day: str, call: str, packed: Packed, *, answered: bool) -> None:
        known.add(day, packed.known(call))
        if answered:
            known.tree.add(packed.answered(call))

    def _stored(self, tx: Tx, ep: EpisodeRow, pending: Pending) -> Iterator[tuple[CallRow, Packed]]:
        """The episode's calls by number, those of the running batch among them."""
        rows = [*self.rows(tx, [ep])[ep.eid], *(r for day in pending.values() for r in day if r.eid == ep.eid)]
        found = CallList(sorted(rows, key=lambda r: r.number))
        for row in found.rows:
            yield row, repack(row, found.messages(row), found.tools(row), found.ids(row))

    def _recall(self, tx: Tx, ep: EpisodeRow, pending: Pending) -> EpisodeCalls:
        """After a restart, if many episodes have come since, or if another proxy has stored calls: from the table."""
        known = EpisodeCalls(count=ep.calls)
        for number, (row, packed) in enumerate(self._stored(tx, ep, pending)):
            if self.db.shared and row.number == number:
                known.stamps.append(stamp_of(row))
            self._remember(known, schema.day_of(row.ts), row.id, packed, answered=row.outcome in ANSWERED)
            known.tree.mark(row.extends)
        return known

    def supersede(self, tx: Tx, eids: Collection[str]) -> None:
        """Mark all but the last attempt of each body in an episode as superseded, in whatever order they arrived."""
        tables = self.days.tables(tx) if eids else []
        with self.tallies.around_calls(tx, tables, eids):
            for table in tables:
                sql = f"""UPDATE {table} SET outcome = 'superseded', trainable = FALSE, reason = 'superseded'
                    WHERE outcome <> 'superseded' AND body_hash <> '' AND eid {IN} AND EXISTS (SELECT 1 FROM {table} d
                    WHERE d.eid = {table}.eid AND d.body_hash = {table}.body_hash AND d.attempt > {table}.attempt)"""
                tx.run(sql, (list(eids),))

    def insert(self, tx: Tx, day: str, rows: Sequence[CallRow]) -> None:
        """Append rows to a day's table."""
        table = schema.table_of(day)
        tx.insert(table, rows)
        reasons = [row.reason for row in rows if not row.trainable and row.trained is not None]
        self.tallies.add_calls(tx, table, reasons)
