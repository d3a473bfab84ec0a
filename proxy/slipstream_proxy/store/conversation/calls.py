"""The calls of episodes: rows, which of them are stored, and what the next call of an episode may begin with.

Bases for the next call and the conversation tree are remembered as hashes. The least recently used leave the memory
first, for a file without a name that ends with this process: an episode whose next call comes late is read back from
there, and nothing of it is put together again.
"""

from __future__ import annotations

import logging
import pickle
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from slipstream_proxy.store.conversation.call_rows import CallList, Packed, call_row, kind_of, pack, repack, stamp_of
from slipstream_proxy.store.conversation.fingerprint import MAX_BASE_CALLS, Known, cut
from slipstream_proxy.store.conversation.kinds import EpisodeKinds, Opening
from slipstream_proxy.store.conversation.order import Stamp, StoreClock, place
from slipstream_proxy.store.conversation.tree import ConversationTree
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.rows import CALL_COLUMNS, CallRow, EpisodeRow, load
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.tallies import Tallies, TallyTable, count_untrainable
from slipstream_proxy.store.values import RecordedCall

log = logging.getLogger(__name__)


MAX_FILE_VALUES = 20_000
"""Values beyond which the file starts again: where each lies is held in memory."""


class Spill:
    """A value is taken back once. What cannot be written (the disk is full) is forgotten: it is only a memory.

    ``most``: bytes of the file beyond which all of it is forgotten. ``places``: how many values likewise.
    """

    def __init__(self, most: int, places: int = MAX_FILE_VALUES) -> None:
        self._most = most
        self._most_places = places
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def put(self, name: str, value: object) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if self._end + len(data) > self._most or len(self._places) >= self._most_places:
            self.clear()
        if len(data) > self._most:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="slipstream-")  # noqa: SIM115  # open as long as this is
            self._file.seek(self._end)
            self._file.write(data)
        except OSError as e:
            log.warning("what is known of past calls cannot be kept on the disk: %s", e)
            self.clear()
            return
        self._places[name] = (self._end, len(data))
        self._end += len(data)

    def take(self, name: str) -> object | None:
        """None: it is not there."""
        place = self._places.pop(name, None)
        if place is None or self._file is None:
            return None
        try:
            self._file.seek(place[0])
            found: object = pickle.loads(self._file.read(place[1]))  # noqa: S301  # this process wrote it
        except (OSError, EOFError, pickle.UnpicklingError) as e:
            log.warning("what is known of past calls cannot be read back: %s", e)
            return None
        if not self._places:
            self._end = 0
        return found

    def clear(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._places.clear()
        self._end = 0


MAX_MEMORY_BYTES = 32 * 2**20
"""Bytes that are remembered, about. More runs go on at once than this holds only where they are long: to take one of
150 calls back from the disk costs 0.7 ms."""
MAX_DISK_BYTES = 4 * 2**30
"""Bytes beyond which the file starts again."""
NEW_EPISODE_BYTES = 2_400
"""Bytes of an episode of which nothing is known yet."""


@dataclass(slots=True)
class EpisodeCalls:
    """What is known of one episode's calls. A call's base lies in the same day's table, as a day is dropped whole."""

    days: dict[str, list[Known]] = field(default_factory=lambda: defaultdict(list))
    tree: ConversationTree = field(default_factory=ConversationTree)
    kinds: EpisodeKinds = field(default_factory=EpisodeKinds)
    stamps: list[Stamp] = field(default_factory=list)
    """The stamps of its calls by number, if several proxies write to the store."""
    count: int = 0
    """How many calls the episode had: another proxy may have stored more since."""

    def add(self, day: str, call: Known) -> None:
        self.days[day].append(call)
        del self.days[day][:-MAX_BASE_CALLS]

    @property
    def size(self) -> int:
        return (
            NEW_EPISODE_BYTES
            + self.tree.size
            + self.kinds.size
            + 160 * len(self.stamps)
            + sum(k.size for known in self.days.values() for k in known)
        )


class KnownCalls:
    def __init__(self, memory: int = MAX_MEMORY_BYTES, disk: int = MAX_DISK_BYTES) -> None:
        self._memory = memory
        self._size = 0
        self._known: OrderedDict[str, EpisodeCalls] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._spill = Spill(disk)

    def get(self, eid: str) -> EpisodeCalls | None:
        """None: not remembered, the store may have some."""
        found = self._known.get(eid)
        if found is not None:
            self._known.move_to_end(eid)
            return found
        spilled = self._spill.take(eid)
        return spilled if isinstance(spilled, EpisodeCalls) else None

    def put(self, eid: str, calls: EpisodeCalls) -> None:
        """Remember an episode, or that it has grown."""
        self._known[eid] = calls
        self._known.move_to_end(eid)
        size = calls.size
        self._size += size - self._sizes.get(eid, 0)
        self._sizes[eid] = size
        while self._size > self._memory and len(self._known) > 1:
            old, left = self._known.popitem(last=False)
            self._size -= self._sizes.pop(old)
            self._spill.put(old, left)

    def clear(self) -> None:
        self._known.clear()
        self._sizes.clear()
        self._spill.clear()
        self._size = 0


TEXT_COLUMNS = ("messages", "tools", "reply", "extra", "error")
TOKEN_COLUMNS = ", ".join(f"NULL AS {c}" if c in TEXT_COLUMNS else c for c in CallRow._fields)
"""``CALL_COLUMNS`` without the text."""
Pending = Mapping[str, list[CallRow]]
"""Day → rows of the running batch, not in the tables yet."""
ANSWERED_OUTCOMES = ("ok", "superseded")
"""Outcomes of calls that a client may go on with."""


class CallTable:
    def __init__(self, db: Driver, days: DayTables, tallies: TallyTable, untrained_kinds: Collection[str] = ()) -> None:
        """``untrained_kinds``: kinds of calls that are not trained on (``kinds``)."""
        self.db = db
        self.untrained_kinds = untrained_kinds
        self.days = days
        self.tallies = tallies
        self.known = KnownCalls()
        self._clock = StoreClock()

    def has(self, tx: Tx, eid: str, call: str, since: float, until: float) -> bool:
        """Whether the episode has a stored call of this id. ``since``, ``until``: when its calls were, at most."""
        tables = self.days.tables(tx, since, until)
        return any(tx.all(f"SELECT 1 FROM {t} WHERE eid = ? AND id = ? LIMIT 1", (eid, call)) for t in tables)

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
        opening = Opening(call.parsed.messages, tools=bool(call.parsed.tools))
        kind = known.kinds.of(opening, extends, call.head.kind)
        self._remember(known, day, call.head.id, packed, answered=call.head.outcome == "ok")
        known.kinds.note(call.head.id, kind, opening, packed.replies)
        known.count = ep.calls + 1
        self.known.put(ep.eid, known)
        left_out = kind in self.untrained_kinds
        return call_row(call, ep.eid, number, packed, made, extends, stamp, kind, left_out=left_out), packed

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

    def _opening(self, packed: Packed) -> Opening:
        messages = [load(text) for text in packed.prompt.texts]
        return Opening(messages, tools=packed.prompt.tools != "[]")

    def _recall(self, tx: Tx, ep: EpisodeRow, pending: Pending) -> EpisodeCalls:
        """After a restart, if many episodes have come since, or if another proxy has stored calls: from the table."""
        known = EpisodeCalls(count=ep.calls)
        for number, (row, packed) in enumerate(self._stored(tx, ep, pending)):
            if self.db.shared and row.number == number:
                known.stamps.append(stamp_of(row))
            self._remember(known, schema.day_of(row.ts), row.id, packed, answered=row.outcome in ANSWERED_OUTCOMES)
            known.tree.mark(row.extends)
            known.kinds.note(row.id, kind_of(row), self._opening(packed), packed.replies)
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

    def insert(self, tx: Tx, day: str, rows: Sequence[CallRow]) -> Tallies:
        """Append rows to a day's table. → What is to be added to the counters."""
        table = schema.table_of(day)
        tx.insert(table, rows)
        return count_untrainable(table, [r.reason for r in rows if not r.trainable and r.trained is not None])
