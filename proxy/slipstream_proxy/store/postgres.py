"""The shared store: PostgreSQL, for several proxies of one fleet."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from slipstream.contract import SqlResult
from slipstream_proxy import cores
from slipstream_proxy.store import schema
from slipstream_proxy.store.driver import QueryError, Row, StoreError
from slipstream_proxy.store.pgcopy import SERIAL, Rewriting, copy_tables
from slipstream_proxy.store.queries import bare, check
from slipstream_proxy.store.sqlstore import Store
from slipstream_proxy.store.user_query import BoundedQuery, QueryRequest
from slipstream_proxy.store.values import Rules

log = logging.getLogger("slipstream.store")

READER = "slipstream_reader"
"""Role that users' queries run as where we may make one: it sees the views and nothing else."""
FORBIDDEN = re.compile(
    r"\b(pg_read\w*|pg_ls\w*|pg_stat_file|pg_file\w*|lo_\w+|dblink\w*|set_config|pg_terminate\w*|pg_cancel\w*|"
    r"pg_reload\w*|pg_rotate\w*|pg_switch\w*|pg_advisory\w*|pg_try_advisory\w*|query_to_\w+|table_to_\w+|"
    r"cursor_to_\w+|database_to_\w+|schema_to_\w+|nextval|setval|pg_sleep\w*|pg_notify|into|pg_\w+|"
    r"information_schema)\b",
    re.IGNORECASE,
)
CLIENT_CHECK = "5s"
"""How often the server looks whether the asker of a running query is still there."""
KINDS = {"TEXT": "text", "FLOAT8": "float8", "BIGINT": "int8", "INTEGER": "int4", "BOOLEAN": "bool", "BYTEA": "bytea"}


@lru_cache(maxsize=1024)
def translate(statement: str) -> bytes:
    """Our ``?`` as psycopg's ``%s``."""
    return statement.replace("%", "%%").replace("?", "%s").encode()


class PostgresTx:
    def __init__(self, cursor: psycopg.Cursor[Row]) -> None:
        self._cursor = cursor

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return self._cursor.execute(translate(sql), params).fetchall()

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        return max(0, self._cursor.execute(translate(sql), params).rowcount)

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        columns = schema.columns_of(table)
        with self._cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        if not rows:
            return
        kinds = schema.columns_of(table)
        names = (*keys, *columns)
        arrays = ", ".join(f"%s::{KINDS[kinds[c]]}[]" for c in names)
        sets = ", ".join(f"{c} = s.{c}" for c in columns)
        same = " AND ".join(f"{table}.{k} = s.{k}" for k in keys)
        statement = f"UPDATE {table} SET {sets} FROM unnest({arrays}) AS s({', '.join(names)}) WHERE {same}"
        self._cursor.execute(statement.encode(), [list(column) for column in zip(*rows, strict=True)])


def watch_client(connection: psycopg.Connection) -> None:
    """Let the server end a query whose asker is gone: a control plane that was killed would leave it working on."""
    with suppress(psycopg.Error):  # servers before 14 can't
        connection.execute(f"SET client_connection_check_interval = '{CLIENT_CHECK}'".encode())


class PostgresDriver:
    shared = True
    lock_rows = " FOR UPDATE SKIP LOCKED"
    on_conflict = " ON CONFLICT DO NOTHING"
    rebuilt = False

    def __init__(self, url: str, *, connections: int = 8, timeout: float = 30.0) -> None:
        self._url = url
        self._pool = ConnectionPool(
            url,
            min_size=1,
            max_size=connections,
            open=False,
            kwargs={"autocommit": True},
            check=ConnectionPool.check_connection,
            configure=watch_client,
            timeout=timeout,
        )
        try:
            # One plain connection first: the pool would try again and again, and say less.
            psycopg.connect(url, connect_timeout=10).close()
            self._pool.open(wait=True)
        except (psycopg.Error, PoolTimeout) as e:
            self._pool.close()
            raise StoreError(f"PostgreSQL cannot be reached: {str(e).strip().splitlines()[0]}") from e
        self._reader = False
        self._rewriting = Rewriting()
        with self.write() as tx:
            tx.run("CREATE SEQUENCE IF NOT EXISTS slipstream_seq")

    def stand(self) -> None:
        return None

    @contextmanager
    def read(self) -> Iterator[PostgresTx]:
        with self._pool.connection() as con, con.transaction(), con.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield PostgresTx(cursor)

    @contextmanager
    def write(self, *, serial: bool = True) -> Iterator[PostgresTx]:
        with self._pool.connection() as con, con.transaction(), con.cursor() as cursor:
            if serial:
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (SERIAL,))
            yield PostgresTx(cursor)

    def next_seq(self, tx: Any, count: int) -> int:
        return min(int(n) for (n,) in tx.all("SELECT nextval('slipstream_seq') FROM generate_series(1, ?)", (count,)))

    def settle(self) -> None:
        """PostgreSQL's own WAL has it."""

    def reread(self) -> AbstractContextManager[PostgresTx]:
        """PostgreSQL answers for what it has committed."""
        return self.read()

    def file_missing(self) -> bool:
        """PostgreSQL looks after its own files."""
        return False

    def copy_to(self, folder: Path) -> Path:
        """``pg_dump``'s form for ``pg_restore``. The program must be at least as new as the server."""
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), key=lambda p: float(p.parts[-3]))
        program = str(found[-1]) if found else shutil.which("pg_dump")
        if program is None:
            raise StoreError("there is no pg_dump on the proxy's machine")
        copy = folder / "slipstream.dump"
        argv = [program, "--format=custom", f"--file={copy}", f"--dbname={self._url}"]
        with cores.anywhere():
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StoreError(f"pg_dump: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
        return copy

    def put_file_back(self) -> None:
        """There is none of ours."""

    def rewrite(self, tables: Sequence[str]) -> None:
        """By copies that take their places (``pgcopy``)."""
        with self._pool.connection() as con, self._pool.connection() as other:
            copy_tables(con, other, list(tables), self._rewriting)
            # Pages of the old files may still stand in the log: the oldest segments are used again from here on.
            try:
                con.execute("CHECKPOINT")
            except psycopg.errors.InsufficientPrivilege:
                log.debug("not allowed to CHECKPOINT: the server will in its own time")

    def give_up(self) -> None:
        self._rewriting.give_up()

    def free_share(self) -> float:
        """PostgreSQL's own vacuum uses free pages again."""
        return 0.0

    def grant(self) -> None:
        """Make the role that users' queries run as, where we may."""
        try:
            with self.write() as tx:
                if not tx.all("SELECT 1 FROM pg_roles WHERE rolname = ?", (READER,)):
                    tx.run(f"CREATE ROLE {READER} NOLOGIN")
                    tx.run(f"GRANT {READER} TO CURRENT_USER")
                ((namespace,),) = tx.all("SELECT quote_ident(current_schema())")
                tx.run(f"GRANT USAGE ON SCHEMA {namespace} TO {READER}")
                tx.run(f"GRANT SELECT ON {', '.join(schema.VIEW_NAMES)} TO {READER}")
                # Somebody else may have made the role: then we are no member of it.
                tx.run(f"SET LOCAL ROLE {READER}")
            self._reader = True
        except psycopg.Error as e:
            self._reader = False
            log.debug("no reading role of its own for queries: %s", e)

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        text = check(query)
        if found := FORBIDDEN.search(bare(text)):
            raise QueryError(
                f"{found.group(0)}: not in a query here; there are the views {', '.join(schema.VIEW_NAMES)}"
            )
        role = READER if self._reader else None
        request = QueryRequest(database=self._url, config={}, role=role, query=text, limit=limit, timeout=timeout)
        with BoundedQuery(request) as running:
            running.open()
            return running.result()

    def close(self) -> None:
        self._pool.close()


class PostgresStore(Store):
    def __init__(self, url: str, rules: Rules | None = None, *, instance: str = "local") -> None:
        driver = PostgresDriver(url)
        super().__init__(driver, rules or Rules(), instance=instance)
        driver.grant()
