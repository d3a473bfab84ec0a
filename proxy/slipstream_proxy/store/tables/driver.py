"""What the shared SQL of ``Store`` needs from a database: transactions, bulk writes, and the few things that differ.

SQL is written once, with ``?`` for parameters and lists as ``IN (SELECT unnest(?::VARCHAR[]))``, in the part of the
language that DuckDB and PostgreSQL share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from slipstream.contract import SqlResult

Row = tuple[Any, ...]

IN = "IN (SELECT unnest(?::VARCHAR[]))"
"""Whether a column is one of a parameter's texts."""


def given(*tests: tuple[str, object]) -> tuple[list[str], list[object]]:
    """Of (condition with one ``?``, value) those that have a value: conditions, and parameters."""
    wanted = [(test, value) for test, value in tests if value is not None]
    return [test for test, _ in wanted], [value for _, value in wanted]


def equal(wanted: object, *columns: str) -> list[tuple[str, object]]:
    """For ``given``: each of these columns is what the filter has under its name."""
    return [(f"{column} = ?", getattr(wanted, column)) for column in columns]


class StoreError(RuntimeError):
    """The store cannot be opened or used, with the reason in one line."""


STORE_FAULTS = frozenset({"OperationalError", "FatalException", "InterfaceError", "PoolTimeout", "StoreError"})
"""Exceptions of DuckDB and psycopg: the disk is full, the server is away, a commit failed. The same may work later."""


def is_store_fault(error: BaseException) -> bool:
    """Whether the database itself failed, and not what it was asked."""
    return bool({kind.__name__ for kind in type(error).__mro__} & STORE_FAULTS)


class QueryError(ValueError):
    """A user's query that is refused or fails, with the reason in one line."""


class Tx(Protocol):
    """One transaction (or one reading connection)."""

    alone: bool
    """Nobody else writes meanwhile: what is remembered of the tables is what it sees."""

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Every row of a query."""

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Rows changed by a statement."""

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Append rows in bulk; columns as ``schema.TABLE_COLUMNS`` has them."""

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Set ``columns`` in bulk; each row has the values of ``keys``, then of ``columns``."""


class Driver(Protocol):
    shared: bool
    """Other processes write too, so that nothing may be remembered between calls."""
    lock_rows: str
    """Appended to a SELECT whose rows are to be leased: rows that another transaction is leasing are passed over."""
    on_conflict: str
    """Appended to an INSERT that may meet a row of its key that a concurrent writer put there."""
    rebuilt: bool
    """The file could not be opened and was set aside. This one is new: replay the spool from its first segment."""

    def stand(self) -> int | None:
        """Another number after each change of what is stored; None: other processes may change it, too."""

    def read(self) -> AbstractContextManager[Tx]: ...
    def write(self, *, serial: bool = True) -> AbstractContextManager[Tx]:
        """A transaction: committed at the end, rolled back by an exception.

        ``serial``: no other serial one runs meanwhile.
        """

    def next_seq(self, tx: Tx, count: int) -> int:
        """The first of ``count`` fresh ascending numbers."""

    def in_order(self, tx: Tx) -> None:
        """Numbers that this transaction takes from here on are seen in their order: no later one before it ends."""

    def settle(self) -> None:
        """Bring what is committed into the file itself (after DDL, for a snapshot)."""

    def reread(self) -> AbstractContextManager[Tx]:
        """A reading transaction that sees what is on the disk, not what is remembered of it.

        Raises ``StoreError`` when it can't now.
        """

    def file_missing(self) -> bool:
        """Whether somebody deleted the database's file while it is open."""

    def put_file_back(self) -> None:
        """Write it again from what is open. Raises ``StoreError`` or ``OSError``."""

    def copy_to(self, folder: Path, *, but: Collection[str] = ()) -> Path:
        """Write a copy of the database at one moment: DuckDB's file, or PostgreSQL's dump without these schemas.

        Raises ``StoreError`` or ``OSError``.
        """

    def rewrite(self, tables: Sequence[str]) -> None:
        """Rewrite tables, so that rows deleted from them are nowhere in the database's files.

        Others read and write meanwhile. Raises ``StoreError`` when it can't be done now.
        """

    def give_up(self) -> None:
        """A rewriting that is under way ends soon and leaves everything as it was; none begins any more."""

    def free_share(self) -> float:
        """The share of the database's file that is empty; 0 where a server manages its files."""

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        """A user's query, locked down. Raises ``QueryError``."""

    def close(self) -> None: ...
