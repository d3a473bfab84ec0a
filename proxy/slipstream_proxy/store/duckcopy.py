"""A DuckDB file rewritten beside reads and writes: freed blocks of a DuckDB file keep their bytes.

A reading transaction copies what is there, table by table, into a new file. What is written meanwhile is noted and
done again in the new file, until little is left; then nobody writes for a moment, the rest is done, and the new file
takes the old one's place. A kill leaves the old file as it is.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import duckdb
import pyarrow as pa

from slipstream.files import sync
from slipstream_proxy.store.driver import Row, StoreError
from slipstream_proxy.store.ducktx import DuckTx

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

log = logging.getLogger("slipstream.store")

ROWS = 20_000
"""Rows that are copied together."""
REST = 1.0
"""Seconds of rest for each second of copying, so that one core is never the copy's alone."""
MOST_ROWS = 500_000
"""Rows written meanwhile that are noted at most: a store that is that busy is rewritten another time."""
LITTLE = 64
"""Transactions left to be done again, with which the last step begins."""
ROUNDS = 10
"""Attempts to come near a store that is written to as fast as it can be; then its writers wait for the rest."""
SWAP_PATIENCE = 0.25
"""Seconds that the last step waits for readers; then it lets them go on and tries again."""
SWAP_TRIES = 240
PRIORITY = 10
"""Niceness of the copying thread."""


class Write(NamedTuple):
    """One call of a ``Tx``: its method and what it got. ``rows``: of a bulk one."""

    method: str
    args: tuple[object, ...]
    rows: Sequence[Row] = ()

    def repeat(self, tx: DuckTx) -> None:
        getattr(tx, self.method)(*self.args, *([self.rows] if self.method != "run" else []))


class WriteLog:
    """What transactions wrote, in order: statements and rows, as ``Tx`` got them."""

    def __init__(self) -> None:
        self._done: list[list[Write]] = []
        self._lock = threading.Lock()
        self.rows = 0
        self._over = threading.Event()

    def add(self, written: list[Write]) -> None:
        if not written or self.over:
            return
        self.rows += sum(len(write.rows) or 1 for write in written)
        if self.rows > MOST_ROWS:
            self.give_up()
            return
        with self._lock:
            self._done.append(written)

    @property
    def over(self) -> bool:
        """It was too much, or the file was closed meanwhile: what is copied is of no use."""
        return self._over.is_set()

    def give_up(self) -> None:
        self._over.set()
        self._done = []

    def rest(self, seconds: float) -> None:
        """Sleep, unless it is over."""
        self._over.wait(seconds)

    def take(self) -> list[list[Write]]:
        with self._lock:
            taken, self._done = self._done, []
        return taken

    def __len__(self) -> int:
        return len(self._done)


class NotingTx(DuckTx):
    """Notes what it writes."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        super().__init__(cursor)
        self.written: list[Write] = []

    def run(self, sql: str, params: Sequence[object] = ()) -> int:
        self.written.append(Write("run", (sql, params)))
        return super().run(sql, params)

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        self.written.append(Write("insert", (table,), list(rows)))
        super().insert(table, rows)

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.written.append(Write("update", (table, keys, columns), list(rows)))
        super().update(table, keys, columns, rows)


class Busy(StoreError):
    """Readers need longer: the same may work a moment later."""


class OpenFile(Protocol):
    """What is needed of the open file (``DuckDriver``)."""

    path: Path

    def begin_copy(self) -> tuple[duckdb.DuckDBPyConnection, WriteLog]:
        """A reading transaction, and the log of what is written from its snapshot on."""

    def end_read(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """The reading transaction ends."""

    def end_copy(self) -> None:
        """Nothing is noted any more."""

    def held(self) -> AbstractContextManager[DuckTx]:
        """Nobody writes meanwhile; the transaction reads what is there."""

    def replaced(self, patience: float) -> AbstractContextManager[None]:
        """While it is held: the file is closed meanwhile. Raises ``Busy`` if readers need longer."""


def copy_anew(source: OpenFile, config: dict[str, str]) -> None:
    """Rewrite the file. Raises ``StoreError`` when that can't be done now; then nothing has changed."""
    new = Path(f"{source.path}.rewrite")
    for left in (new, Path(f"{new}.wal")):
        left.unlink(missing_ok=True)
    cursor, written = source.begin_copy()
    try:
        with ExitStack() as reading:
            reading.callback(source.end_read, cursor)
            to = duckdb.connect(str(new), config={**config})
            try:
                with _nice():
                    _copy_tables(cursor, to, written)
                reading.close()
                _catch_up(to, written)
                _swap(source, to, new, written)
            finally:
                if written.over:
                    with suppress(duckdb.Error):  # closing would write what nobody wants
                        to.execute("PRAGMA disable_checkpoint_on_shutdown")
                to.close()
    finally:
        source.end_copy()
        for left in (new, Path(f"{new}.wal")):
            left.unlink(missing_ok=True)


@contextmanager
def _nice() -> Iterator[None]:
    """Give way to others in this thread, where the system lets it come back from that."""
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    if not _may_come_back(before):
        yield
        return
    os.setpriority(os.PRIO_PROCESS, thread, before + PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, thread, before)


def _may_come_back(before: int) -> bool:
    return os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - before


def _copy_tables(cursor: duckdb.DuckDBPyConnection, to: duckdb.DuckDBPyConnection, written: WriteLog) -> None:
    mine = "database_name = current_database() AND NOT internal"
    tables = cursor.execute(f"SELECT table_name, sql FROM duckdb_tables() WHERE {mine}").fetchall()
    indexes = cursor.execute("SELECT sql FROM duckdb_indexes() WHERE database_name = current_database()").fetchall()
    views = cursor.execute(f"SELECT sql FROM duckdb_views() WHERE {mine}").fetchall()
    for name, sql in tables:
        to.execute(sql)
        for batch in cursor.sql(f"SELECT * FROM {name}").to_arrow_reader(ROWS):
            started = time.monotonic()
            to.register("part", pa.Table.from_batches([batch]))
            to.execute(f"INSERT INTO {name} SELECT * FROM part")
            to.unregister("part")
            written.rest(REST * (time.monotonic() - started))
            _go_on(written)
    for (sql,) in (*indexes, *views):
        to.execute(sql)
        _go_on(written)
    to.execute("CHECKPOINT")


def _go_on(written: WriteLog) -> None:
    if written.over:
        raise StoreError("the store was too busy, or was closed, while it was rewritten")


def _catch_up(to: duckdb.DuckDBPyConnection, written: WriteLog) -> None:
    for _ in range(ROUNDS):
        if len(written) <= LITTLE:
            break
        _repeat(to, written)
    to.execute("CHECKPOINT")


def _repeat(to: duckdb.DuckDBPyConnection, written: WriteLog) -> None:
    for transaction in written.take():
        to.begin()
        tx = DuckTx(to)
        for write in transaction:
            write.repeat(tx)
        to.commit()
    _go_on(written)


def _swap(source: OpenFile, to: duckdb.DuckDBPyConnection, new: Path, written: WriteLog) -> None:
    for _ in range(SWAP_TRIES):
        _repeat(to, written)
        with source.held() as tx:
            _repeat(to, written)
            if _counts(tx) != _counts(DuckTx(to)):
                raise StoreError(f"{new} does not hold what {source.path} holds: the old file stays")
            to.execute("CHECKPOINT")
            try:
                with source.replaced(SWAP_PATIENCE):
                    _take_place(source.path, to, new)
                return
            except Busy:
                log.debug("the new file waits for readers")
        time.sleep(2 * SWAP_PATIENCE)
    raise Busy(f"{source.path} is being read all the time")


def _take_place(path: Path, to: duckdb.DuckDBPyConnection, new: Path) -> None:
    to.close()
    for file in (path, new):
        if Path(f"{file}.wal").exists():
            raise StoreError(f"{file}.wal is still there: the old file stays")
    new.replace(path)
    sync(path.parent)


def _counts(tx: DuckTx) -> dict[str, int]:
    sql = "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() AND NOT internal"
    return {name: tx.all(f"SELECT count(*) FROM {name}")[0][0] for (name,) in tx.all(sql)}
