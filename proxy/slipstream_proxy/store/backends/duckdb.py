"""The embedded store: one DuckDB file, written by this process alone."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb

from slipstream.contract import SqlResult
from slipstream_proxy.process.query import QueryRequest
from slipstream_proxy.store.backends.duckfile import (
    Appenders,
    Busy,
    DuckTx,
    LentLock,
    NotingTx,
    WriteLog,
    copy_anew,
    copy_file,
    open_file,
    open_or_set_aside,
    restore_deleted,
)
from slipstream_proxy.store.backends.queries import ARCHIVED_VIEW_PATTERN, BoundedQuery, archived_days, check
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import Rules

log = logging.getLogger("slipstream.store")

INDEXED_KEYS = 4096
"""Rows of one update that an index finds; of more the table is read (DuckDB's default: 50)."""
REREAD_PATIENCE = 5.0
"""Seconds that a snapshot's verification waits for readers to end; another snapshot will come."""


class DuckDriver:
    shared = False
    lock_rows = ""
    on_conflict = ""

    def __init__(
        self, path: str | Path, *, memory_limit: str = "1GB", threads: int = 1, archive: str | None = None
    ) -> None:
        """``archive``: where days are that left the store; queries read them, too."""
        self.path, self._archive = Path(path), archive
        self._config = {
            "memory_limit": memory_limit,
            "threads": str(threads),
            "checkpoint_threshold": "64MB",
            "python_enable_replacements": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "preserve_insertion_order": "true",
            "dynamic_or_filter_threshold": str(INDEXED_KEYS),
        }
        self._writing = threading.Lock()
        self._querying = threading.Lock()
        self._lock = LentLock(self.path)
        self._idle = threading.Condition()
        self._users = 0
        self._closing = False
        self._ended = False
        self._opening = 0
        """How often the file was closed: what a cursor belongs to."""
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self._local = threading.local()
        self._writer: tuple[duckdb.DuckDBPyConnection, Appenders] | None = None
        """What all transactions that write share, one after the other; None: it is made with the next one."""
        self._seq: int | None = None
        self._changes = 0
        self._given_up = False
        self._log: WriteLog | None = None
        """Notes what is written while the file is copied; None: it is not being copied."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._con: duckdb.DuckDBPyConnection | None
        self._con, self.rebuilt = open_or_set_aside(self.path, self._config)

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """The thread's own connection to the open file."""
        with self._idle:
            if getattr(self._local, "opening", None) != self._opening or self._con is None:
                self._local.cursor = self._new_cursor()
                self._local.opening = self._opening
        cursor: duckdb.DuckDBPyConnection = self._local.cursor
        return cursor

    def _writing_cursor(self) -> tuple[duckdb.DuckDBPyConnection, Appenders]:
        """``_writing`` is held."""
        with self._idle:
            if self._writer is None:
                cursor = self._new_cursor()
                self._writer = cursor, Appenders(cursor)
        return self._writer

    def _new_cursor(self) -> duckdb.DuckDBPyConnection:
        """``_idle`` is held."""
        if self._con is None:
            if self._ended:
                raise StoreError(f"{self.path} is closed")
            # It could not be opened again the last time (the disk was full, for one).
            self._con = open_file(self.path, self._config)
        cursor = self._con.cursor()
        self._cursors.append(cursor)
        return cursor

    @contextmanager
    def _using(self) -> Iterator[None]:
        """The file stays open meanwhile."""
        with self._idle:
            self._idle.wait_for(lambda: not self._closing)
            self._users += 1
        try:
            yield
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    @contextmanager
    def _closed(self, patience: float | None = None, *, copied: bool = False) -> Iterator[None]:
        """Nobody has the file open meanwhile; then it is open again. ``_writing`` is held.

        ``copied``: for a copy to take its place; else a copy that is being made is given up. Raises ``Busy`` if
        readers need longer.
        """
        if self._log is not None and not copied:
            self._log.give_up()
        with self._idle:
            self._closing = True
            if not self._idle.wait_for(lambda: self._users == 0, patience):
                self._closing = False
                self._idle.notify_all()
                raise Busy(f"{self.path} is being read all the time")
        self._keep_file()
        try:
            self._close()
            yield
        finally:
            try:
                self._con = open_file(self.path, self._config)
            finally:
                with self._idle:
                    self._closing = False
                    self._idle.notify_all()

    def _keep_file(self) -> None:
        """If somebody deleted the file, it lives until it is closed: write it again before.

        Nobody uses it meanwhile.
        """
        if self._con is None or self.path.exists():
            return
        try:
            self._con.execute("FORCE CHECKPOINT").fetchall()
            restore_deleted(self.path)
            log.critical("%s was deleted while it was open: it is written again from what was open", self.path)
        except BaseException:
            with self._idle:
                self._closing = False
                self._idle.notify_all()
            raise

    def _close(self) -> None:
        self._writer = None
        for cursor in self._cursors:
            with contextlib.suppress(duckdb.Error):  # one whose query was given up, and is still ending
                cursor.close()
        self._cursors.clear()
        self._opening += 1
        if self._con is not None:
            self._con.close()
            self._con = None
        self._lock.close()

    # transactions

    def stand(self) -> int:
        return self._changes + self._opening

    @contextmanager
    def read(self) -> Iterator[DuckTx]:
        """One snapshot for all queries of the block."""
        with self._using():
            cursor = self._cursor()
            cursor.begin()
            try:
                yield DuckTx(cursor, alone=False)
            finally:
                cursor.rollback()

    @contextmanager
    def write(self, *, serial: bool = True) -> Iterator[DuckTx]:
        with self._writing:
            try:
                with self._using():
                    cursor, appenders = self._writing_cursor()
                    kind = DuckTx if self._log is None else NotingTx
                    tx = kind(cursor, appenders=appenders)
                    cursor.begin()
                    try:
                        yield tx
                        cursor.commit()
                        self._changes += tx.changes
                        if self._log is not None and isinstance(tx, NotingTx):
                            self._log.add(tx.written)
                    except BaseException:
                        self._seq = None
                        self._writer = cursor, Appenders(cursor)
                        self._roll_back(cursor)
                        raise
            except duckdb.FatalException:
                # The instance is invalid for good (the disk was full, for one): a fresh one reads what was committed.
                with self._closed():
                    log.error("the store had to be opened again")
                raise

    @staticmethod
    def _roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
        try:
            cursor.rollback()
        except duckdb.Error:
            log.debug("nothing to roll back")

    def next_seq(self, tx: Any, count: int) -> int:
        if self._seq is None:
            numbers = ("max(seq) FROM t_rewards", "max(id) FROM t_events", "max(seq) FROM t_outcomes")
            self._seq = max(tx.all(f"SELECT {number}")[0][0] or 0 for number in numbers)
        first = self._seq + 1
        self._seq += count
        return first

    def in_order(self, tx: Any) -> None:
        """One writes at a time."""

    # files

    def settle(self) -> None:
        with self._writing, self._using():
            try:
                self._cursor().execute("CHECKPOINT").fetchall()
            except duckdb.TransactionException:
                if self._log is not None:
                    return  # a copy is being made: its last step settles more than this
                # Somebody reads: this one waits until they have done, as no new transaction writes meanwhile.
                self._cursor().execute("FORCE CHECKPOINT").fetchall()

    @contextmanager
    def reread(self) -> Iterator[DuckTx]:
        """Open the file again: DuckDB remembers blocks, and checks their sums when it reads them."""
        with self._writing, self._closed(REREAD_PATIENCE):
            log.debug("%s is opened again", self.path)
        with self.read() as tx:
            yield tx

    def file_missing(self) -> bool:
        """Whether somebody deleted the file that is open."""
        return not self._closing and not self._ended and not self.path.exists()

    def copy_to(self, folder: Path, *, but: Collection[str] = ()) -> Path:
        """The file and its log, while nothing is written: the spool keeps what comes."""
        self.settle()
        with self._writing, self._using():
            return copy_file(self.path, folder / "slipstream.duckdb")

    def put_file_back(self) -> None:
        """Write the file that is open, and has no name any more, under its old one.

        Raises ``StoreError`` or ``OSError``.
        """
        with self._writing, self._closed():
            log.debug("%s is opened again", self.path)

    def rewrite(self, tables: Sequence[str]) -> None:
        """Copy everything to a new file that takes this one's place: freed blocks of a file keep their bytes."""
        copy_anew(self, self._config)

    def give_up(self) -> None:
        self._given_up = True
        if (written := self._log) is not None:
            written.give_up()

    def free_share(self) -> float:
        """The share of the file's blocks that are free."""
        with self.read() as tx:
            ((total, free),) = tx.all("SELECT total_blocks, free_blocks FROM pragma_database_size()")
        return float(free / total) if total else 0.0

    def begin_copy(self) -> tuple[duckdb.DuckDBPyConnection, WriteLog]:
        """See ``duckfile.OpenFile``."""
        with self._writing:
            with self._idle:
                self._idle.wait_for(lambda: not self._closing)
                if self._con is None or self._ended or self._given_up:
                    raise StoreError(f"{self.path} is not open for a rewriting")
                cursor = self._con.cursor()
                self._users += 1
            try:
                cursor.begin()
                cursor.execute("SELECT count(*) FROM t_meta").fetchall()
            except BaseException:
                self.end_read(cursor)
                raise
            self._log = WriteLog()
            return cursor, self._log

    def end_read(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """The copy's reading transaction ends."""
        try:
            cursor.close()
        finally:  # whoever closes the file waits for this
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def end_copy(self) -> None:
        """Nothing is noted any more."""
        self._log = None

    @contextmanager
    def held(self) -> Iterator[DuckTx]:
        """Nobody writes meanwhile."""
        with self._writing:
            yield DuckTx(self._cursor())

    def replaced(self, patience: float) -> AbstractContextManager[None]:
        """While it is held: the file is closed meanwhile. Raises ``Busy`` if readers need longer."""
        return self._closed(patience, copied=True)

    # users' queries

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        """In a process of its own, which reads the file beside this one (``queries.py``)."""
        text = check(query)
        request = QueryRequest(
            database=str(self.path),
            config=self._config,
            role=None,
            query=text,
            limit=limit,
            timeout=timeout,
            archive=archived_days(self._archive) if self._archive and ARCHIVED_VIEW_PATTERN.search(text) else None,
        )
        with BoundedQuery(request) as running, self._querying, ExitStack() as stack:
            # nobody writes while the reader opens the file, so that it finds the log whole; and whoever closes the file
            # holds this lock while it waits for users, so it comes first
            with self._writing:
                stack.enter_context(self._using())
                stack.callback(self._lock.take_back)
                stack.callback(running.end)
                self._lock.lend()
                running.open()
            return running.result()

    def close(self) -> None:
        if self._log is not None:
            self._log.give_up()
        with self._writing:
            with self._idle:
                self._ended = True
                self._idle.wait_for(lambda: self._users == 0, timeout=30)
            self._close()


class DuckStore(Store):
    def __init__(
        self,
        path: str | Path,
        rules: Rules | None = None,
        *,
        memory_limit: str = "1GB",
        threads: int = 1,
        instance: str = "local",
        archive: str | None = None,
    ) -> None:
        driver = DuckDriver(path, memory_limit=memory_limit, threads=threads, archive=archive)
        super().__init__(driver, rules or Rules(), instance=instance)
