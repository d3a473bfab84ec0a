"""The file of a DuckDB store: transactions on it, opening it (or setting it aside when it is broken), and writing it
anew.

Freed blocks of a DuckDB file keep their bytes (findings/README.md), so it is rewritten
beside reads and writes. A reading transaction copies what is there, table by table, into a new file. What is written
meanwhile is noted and done again in the new file, until little is left; then nobody writes for a moment, the rest is
done, and the new file takes the old one's place. A kill leaves the old file as it is.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import duckdb
import pyarrow as pa

from slipstream.shared.files import sync
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import IN, Row, StoreError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

ARROW_TYPES = {
    "TEXT": pa.string(),
    "FLOAT8": pa.float64(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "BYTEA": pa.binary(),
}


MAX_PARAMETER_NAMES = 512
"""Names that a statement has as parameters of their own: an index finds these, and not what a list holds."""


def spread(sql: str, params: Sequence[object]) -> tuple[str, Sequence[object]]:
    """``IN`` with each short list's items as parameters of their own."""
    head, *rest = sql.split(IN)
    if not rest:
        return sql, params
    at = head.count("?")
    flat: list[object] = list(params[:at])
    for part in rest:
        names = params[at]
        assert isinstance(names, list)
        short = 0 < len(names) <= MAX_PARAMETER_NAMES
        head += (f"IN ({', '.join('?' * len(names))})" if short else IN) + part
        after = at + 1 + part.count("?")
        flat += [*(names if short else [names]), *params[at + 1 : after]]
        at = after
    return head, flat


PARSED_STATEMENTS, MAX_PARSED_PARAMETERS = 512, 16
_parsed: dict[str, duckdb.Statement | str] = {}


def parsed(cursor: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement | str:
    """A statement that DuckDB need not parse again, which is a third of a short one's time. The newest
    ``PARSED_STATEMENTS`` are
    kept, but for those with lists of many names, which come up in every length.
    """
    found = _parsed.get(sql)
    if found is None:
        if sql.count("?") > MAX_PARSED_PARAMETERS:
            return sql
        statements = cursor.extract_statements(sql)
        for oldest in list(_parsed)[: max(0, len(_parsed) + 1 - PARSED_STATEMENTS)]:
            _parsed.pop(oldest, None)
        found = _parsed[sql] = statements[0] if len(statements) == 1 else sql
    return found


class Appenders:
    """Rows in bulk over one connection. Appenders are kept: to make one costs as much as what it appends."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._of: dict[tuple[str, tuple[str, ...], tuple[str, ...]], duckdb.Appender] = {}

    def append(self, table: str, columns: tuple[str, ...], rows: Sequence[Row], keys: tuple[str, ...] = ()) -> None:
        """``keys``: columns by which rows that are there are changed; without them the rows are new."""
        which = (table, columns, keys)
        appender = self._of.pop(which, None) or self._cursor.appender(
            table, columns=list(columns), action="update" if keys else "insert", key=list(keys) or None
        )
        appender.append_rows(rows)
        appender.flush()
        self._of[which] = appender  # one that failed holds rows, and is not used again


class DuckTx:
    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, *, alone: bool = True, appenders: Appenders | None = None
    ) -> None:
        self._cursor = cursor
        self._appenders = appenders or Appenders(cursor)
        self.alone = alone
        self.changes = False
        """Something was written."""

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return self._done(*spread(sql, params))

    def _done(self, sql: str, params: Sequence[object] = ()) -> list[Row]:
        rows: list[Row] = self._cursor.execute(parsed(self._cursor, sql), params).fetchall()
        return rows

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        rows = self._done(*spread(sql, params))
        self.changes = self.changes or rows != [(0,)]
        return int(rows[0][0]) if rows and isinstance(rows[0][0], int) else 0

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        if rows:
            self.changes = True
            self._appenders.append(table, tuple(schema.columns_of(table)), rows)

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        if rows:
            self.changes = True
            self._appenders.append(table, (*keys, *columns), rows, tuple(keys))


log = logging.getLogger("slipstream.store")

BLOCKED_ERRORS = (
    "could not set lock",
    "permission denied",
    "no such file",
    "cannot open file",
    "no space left",
    "read-only file system",
)
"""Why a good file cannot be opened just now: it is left where it is."""


class LentLock:
    """DuckDB's lock on an open file, which lets no other process read. It is given up for a reader, whose own lock
    keeps writers out meanwhile.

    POSIX locks belong to a process and a file, whichever descriptor they were taken with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        """Holds the lock since a reader had it. Closing it would give the lock up."""

    def lend(self) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR)
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def take_back(self) -> None:
        if self._fd is not None:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                log.error("%s is open in another process, too", self.path)

    def close(self) -> None:
        """The file was closed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def open_file(path: Path, config: dict[str, str]) -> duckdb.DuckDBPyConnection:
    """Open the file, or make it. Raises DuckDB's own errors."""
    con = duckdb.connect(str(path), config={**config})
    try:
        # A query offered to users may run `read_text`: nothing outside the file can be reached, and nobody can
        # change that.
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        for (table,) in con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE table_name IN ('t_meta', 't_positions')"
        ).fetchall():
            con.execute(f"SELECT * FROM {table}").fetchall()
    except BaseException:
        con.close()
        raise
    return con


def open_or_set_aside(path: Path, config: dict[str, str]) -> tuple[duckdb.DuckDBPyConnection, bool]:
    """The open file, and whether it was broken and anything of it was set aside.

    A broken log is set aside alone, because the file holds everything up to the last snapshot and the spool holds what
    came since. A broken file is set aside too.
    """
    con, reason = _try_open(path, config)
    if con is not None:
        return con, False
    aside = path.with_name(f"{path.name}.broken-{int(time.time() * 1000)}")
    wal, wal_aside = Path(f"{path}.wal"), Path(f"{aside}.wal")
    if wal.exists():
        wal.rename(wal_aside)
        try:
            con, _ = _try_open(path, config)
        except StoreError:
            wal_aside.rename(wal)
            raise
        if con is not None:
            log.critical(
                "the log of %s is broken (%s): set aside as %s; the spool is replayed from the last snapshot on",
                path,
                reason,
                wal_aside.name,
            )
            return con, True
    if path.exists():
        path.rename(aside)
    log.critical(
        "the store %s is broken (%s): set aside as %s; a new one is made and the spool is replayed",
        path,
        reason,
        aside.name,
    )
    return open_file(path, config), True


def _try_open(path: Path, config: dict[str, str]) -> tuple[duckdb.DuckDBPyConnection | None, str]:
    """Or why it is broken. Raises ``StoreError`` when it may be good and cannot be opened just now."""
    try:
        return open_file(path, config), ""
    except (duckdb.Error, RuntimeError, UnicodeDecodeError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        if any(b in reason.lower() for b in BLOCKED_ERRORS):
            raise StoreError(f"{path} cannot be opened: {reason}") from e
        return None, reason


def copy_file(path: Path, copy: Path) -> Path:
    """Copy a file and its log, while nobody writes. → The copy."""
    shutil.copyfile(path, copy)
    wal = Path(f"{path}.wal")
    if wal.exists():
        shutil.copyfile(wal, f"{copy}.wal")
    return copy


def restore_deleted(path: Path) -> None:
    """Copy the deleted file that this process still has open back to its path.

    Raises ``StoreError`` if none is open.
    """
    name = f"{path.resolve()} (deleted)"
    found = next((fd for fd in Path("/proc/self/fd").iterdir() if _target(fd) == name), None)
    if found is None:
        raise StoreError(f"{path} is deleted, and no longer open")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = Path(f"{path}.restored")
    shutil.copyfile(found, new)
    sync(new)
    new.replace(path)


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""


ROWS_PER_COPY = 20_000
"""Rows that are copied together."""
REST_PER_COPY_S = 1.0
"""Seconds of rest for each second of copying, so that one core is never the copy's alone."""
MOST_ROWS = 500_000
"""Rows written meanwhile that are noted at most: a store that is that busy is rewritten another time."""
LAST_STEP_TRANSACTIONS = 64
"""Transactions left to be done again, with which the last step begins."""
COPY_ROUNDS = 10
"""Attempts to come near a store that is written to as fast as it can be; then its writers wait for the rest."""
SWAP_PATIENCE = 0.25
"""Seconds that the last step waits for readers; then it lets them go on and tries again."""
SWAP_TRIES = 240
COPY_NICENESS = 10
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

    def __init__(self, cursor: duckdb.DuckDBPyConnection, *, appenders: Appenders | None = None) -> None:
        super().__init__(cursor, appenders=appenders)
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
    os.setpriority(os.PRIO_PROCESS, thread, before + COPY_NICENESS)
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
        for batch in cursor.sql(f"SELECT * FROM {name}").to_arrow_reader(ROWS_PER_COPY):
            started = time.monotonic()
            to.register("part", pa.Table.from_batches([batch]))
            to.execute(f"INSERT INTO {name} SELECT * FROM part")
            to.unregister("part")
            written.rest(REST_PER_COPY_S * (time.monotonic() - started))
            _go_on(written)
    for (sql,) in (*indexes, *views):
        to.execute(sql)
        _go_on(written)
    to.execute("CHECKPOINT")


def _go_on(written: WriteLog) -> None:
    if written.over:
        raise StoreError("the store was too busy, or was closed, while it was rewritten")


def _catch_up(to: duckdb.DuckDBPyConnection, written: WriteLog) -> None:
    for _ in range(COPY_ROUNDS):
        if len(written) <= LAST_STEP_TRANSACTIONS:
            break
        _repeat(to, written)
    to.execute("CHECKPOINT")


def _repeat(to: duckdb.DuckDBPyConnection, written: WriteLog) -> None:
    tx = DuckTx(to)
    for transaction in written.take():
        to.begin()
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
