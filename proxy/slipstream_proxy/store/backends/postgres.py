"""The shared store: PostgreSQL, for several proxies of one fleet.

A PostgreSQL table rewritten beside reads and writes: a plain ``VACUUM`` leaves deleted text in its pages, and
``VACUUM FULL`` stops everybody who uses the table.

A copy takes the table's place. A trigger notes which rows change meanwhile, and these are copied again until few are
left. Then writers wait for a moment while the last ones are copied. Readers see the copy only once each of them can see
all of its rows. A kill leaves the old table as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import time
from binascii import crc32
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql as pgsql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from slipstream.contract import SqlResult
from slipstream.shared.urls import without_password
from slipstream_proxy.process import cores
from slipstream_proxy.process.query import QueryRequest
from slipstream_proxy.store.backends.queries import BoundedQuery, bare, check
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import QueryError, Row, StoreError
from slipstream_proxy.store.values import Rules

log = logging.getLogger("slipstream.store")

SERIAL_LOCK_ID = 0x511B57EA
"""Advisory lock of transactions that run one at a time over all proxies."""
REWRITING_LOCK_ID = 0x511B57EB
"""Advisory lock: one proxy rewrites at a time."""
BESIDE_LOCK_ID = 0x511B57ED
"""Advisory lock, shared by transactions that write and are not among those that run one at a time."""
COPIED_BY = {"t_cases": "eid"}
"""The column by which a table is copied whose key has several: rows that share its value are copied together."""
COPY_SUFFIX, REPLACED_SUFFIX, NOTED_SUFFIX = "__new", "__old", "__noted"
"""Ends of names: the copy, what it replaces, the keys of rows that have changed."""
ROWS_PER_COPY = 20_000
"""Noted rows that are copied again in one transaction."""
LAST_STEP_ROWS = 200
"""Noted rows with which the last step begins."""
COPY_ROUNDS = 10
"""Attempts to come near a table that is written to as fast as it can be; then its writers wait for the rest."""
WRITERS_WAIT, READERS_WAIT = 1.5, 0.25
"""Seconds that the last step waits for writers and for readers to end; others of their kind wait behind it."""
SWAP_TRIES = 120
COPY_RETRY_INTERVAL_S = 0.5
"""Seconds between two tries."""

TENANT_SCHEMA_PREFIX = "slipstream_"


def is_tenants(schema: str) -> bool:
    return schema.startswith(TENANT_SCHEMA_PREFIX)


def lock_of(id: int, schema: str) -> int:
    """An advisory lock. A database has them in common: a tenant's writers wait for nobody else's."""
    return (crc32(schema.encode()) & 0x7FFFFFFF) << 32 | id if is_tenants(schema) else id


Connection = psycopg.Connection[Row]
OTHER_WRITERS_SQL = """SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'virtualxid' AND l.granted AND a.datname = current_database()
    AND a.backend_type = 'client backend' AND NOT l.pid = ANY(%s)
    AND NOT EXISTS (SELECT 1 FROM pg_locks w WHERE w.pid = l.pid AND NOT w.granted)"""
"""Transactions of others that may look at an older state. One that waits for a lock looks anew when it has it."""


class Rewriting:
    """Lets a thread end the rewriting that another one is at."""

    def __init__(self) -> None:
        self.over = False
        self._at: Connection | None = None
        """Its connection, while a statement of it may be cut off."""

    @contextlib.contextmanager
    def by(self, one: Connection) -> Iterator[None]:
        self._at = one
        try:
            yield
        finally:
            self._at = None

    def go_on(self) -> None:
        """Raises ``StoreError`` if it is over."""
        if self.over:
            raise StoreError("the store was closed while it was rewritten")

    def give_up(self) -> None:
        """It ends soon and leaves everything as it was; none begins any more."""
        self.over = True
        if (at := self._at) is not None:
            at.cancel()


class CopiedTable(NamedTuple):
    """Names in one table's rewriting, as they stand in SQL. ``name``: of the table, without its schema."""

    schema: str
    name: str
    key: str

    def sql(self, text: str) -> bytes:
        """``text`` with its names: {table}, {new}, {old}, {noted}, {note}, {trigger}, {key} and their bare forms."""
        bare = {
            "new": self.name + COPY_SUFFIX,
            "old": self.name + REPLACED_SUFFIX,
            "noted": self.name + NOTED_SUFFIX,
            "table": self.name,
        }
        names: dict[str, pgsql.Composable] = {n: pgsql.Identifier(self.schema, name) for n, name in bare.items()}
        names |= {f"bare_{n}": pgsql.Identifier(name) for n, name in bare.items()}
        names |= {"key": pgsql.Identifier(self.key), "trigger": pgsql.Identifier("slipstream_noted")}
        names["note"] = pgsql.Identifier(self.schema, f"{self.name}__note")
        return pgsql.SQL(text).format(**names).as_bytes(None)


def copy_tables(one: Connection, two: Connection, tables: list[str], rewriting: Rewriting) -> None:
    """Rewrite each. Two connections without a transaction. Raises ``StoreError`` when it can't be done now."""
    if not one.execute("SELECT pg_try_advisory_lock(%s)", (REWRITING_LOCK_ID,)).fetchall()[0][0]:
        raise StoreError("another proxy rewrites its tables just now")
    try:
        ((namespace,),) = one.execute("SELECT current_schema()").fetchall()
        clear(one, namespace)
        for table in tables:
            if one.execute("SELECT to_regclass(%s)", (f"{namespace}.{table}",)).fetchall()[0][0] is not None:
                key = COPIED_BY.get(table) or schema.key_of(table) or ""
                with rewriting.by(one):
                    _copy(one, two, CopiedTable(namespace, table, key), rewriting)
    except psycopg.errors.QueryCanceled as e:
        raise StoreError(f"the rewriting was cut off: {str(e).splitlines()[0]}") from e
    except psycopg.errors.LockNotAvailable as e:
        raise StoreError(f"a table is in use: it is rewritten later ({str(e).splitlines()[0]})") from e
    finally:
        with contextlib.suppress(psycopg.Error):
            clear(one, namespace)
        one.execute("SELECT pg_advisory_unlock(%s)", (REWRITING_LOCK_ID,))


def clear(one: Connection, namespace: str) -> None:
    """Drop what a rewriting that was cut off has left. The lock ``REWRITING_LOCK_ID`` is held."""
    sql = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND right(tablename, %s) = %s"
    for (noted,) in one.execute(sql, (namespace, len(NOTED_SUFFIX), NOTED_SUFFIX)).fetchall():
        copied = CopiedTable(namespace, noted.removesuffix(NOTED_SUFFIX), "id")
        with _waiting(one, WRITERS_WAIT):
            one.execute(copied.sql("DROP FUNCTION IF EXISTS {note} CASCADE"))
            one.execute(copied.sql("DROP TABLE IF EXISTS {new}, {noted}"))


@contextlib.contextmanager
def _waiting(one: Connection, seconds: float) -> Iterator[None]:
    """A transaction that waits for a lock for so long at most."""
    with one.transaction():
        one.execute(f"SET LOCAL lock_timeout = {int(1000 * seconds)}".encode())
        yield


def _copy(one: Connection, two: Connection, copied: CopiedTable, rewriting: Rewriting) -> None:
    rewriting.go_on()
    with _waiting(one, WRITERS_WAIT):
        one.execute(copied.sql("CREATE TABLE {new} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE)"))
        one.execute(copied.sql("CREATE TABLE {noted} (n BIGSERIAL PRIMARY KEY, k TEXT)"))
        one.execute(
            copied.sql("""CREATE FUNCTION {note}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'DELETE' THEN INSERT INTO {noted} (k) VALUES (OLD.{key});
            ELSE INSERT INTO {noted} (k) VALUES (NEW.{key}); END IF; RETURN NULL; END $$""")
        )
        one.execute(
            copied.sql("""CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE OR DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION {note}()""")
        )
    rewriting.go_on()
    one.execute(copied.sql("INSERT INTO {new} SELECT * FROM {table}"))
    indexes = _make_indexes(one, copied)
    for _ in range(COPY_ROUNDS):
        rewriting.go_on()
        if _again(one, copied) <= LAST_STEP_ROWS:
            break
    _check(one, copied)
    for _ in range(SWAP_TRIES):
        rewriting.go_on()
        try:
            if _swap(one, two, copied, indexes):
                return
        except psycopg.errors.LockNotAvailable:
            log.debug("the new %s waits for those who use the old one", copied.name)
        time.sleep(COPY_RETRY_INTERVAL_S)
        _again(two, copied)
    raise StoreError(f"{copied.name} is in use all the time: it is rewritten later")


def _make_indexes(one: Connection, copied: CopiedTable) -> dict[str, str]:
    """→ Names of the copy's indexes, and what they are called once it has taken the table's place."""
    sql = """SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indisprimary FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s::regclass"""
    named = pgsql.Identifier(copied.schema, copied.name).as_string(None)
    found = {}
    for name, made, primary in one.execute(sql, (named,)).fetchall():
        found[name + COPY_SUFFIX] = name
        to = f" ON {copied.sql('{new}').decode()} USING "
        begin = f"CREATE {'UNIQUE ' if primary else ''}INDEX {pgsql.Identifier(name + COPY_SUFFIX).as_string(None)}"
        one.execute((begin + to + made.partition(" USING ")[2]).encode())
        if primary:
            index = pgsql.Identifier(name + COPY_SUFFIX).as_string(None)
            text = f"ALTER TABLE {{new}} ADD PRIMARY KEY USING INDEX {index}"
            one.execute(copied.sql(text))
    return found


def _again(one: Connection, copied: CopiedTable) -> int:
    """Copy the rows that have changed again. → How many were noted."""
    with one.transaction():
        taken = one.execute(
            copied.sql("DELETE FROM {noted} WHERE n IN (SELECT n FROM {noted} ORDER BY n LIMIT %s) RETURNING k"),
            (ROWS_PER_COPY,),
        ).fetchall()
        keys = list({key for (key,) in taken})
        if keys:
            one.execute(copied.sql("DELETE FROM {new} WHERE {key} = ANY(%s)"), (keys,))
            one.execute(copied.sql("INSERT INTO {new} SELECT * FROM {table} WHERE {key} = ANY(%s)"), (keys,))
    return len(taken)


def _check(one: Connection, copied: CopiedTable) -> None:
    """What only one of the two tables holds has changed just now. Raises ``StoreError`` if not so."""
    sql = """SELECT count(*) FROM {table} a FULL JOIN {new} b ON a.{key} = b.{key}
        WHERE (a.{key} IS NULL OR b.{key} IS NULL) AND coalesce(a.{key}, b.{key}) NOT IN (SELECT k FROM {noted})"""
    with one.transaction():
        one.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        ((different,),) = one.execute(copied.sql(sql)).fetchall()
    if different:
        raise StoreError(f"the copy of {copied.name} differs in {different} rows: the old table stays")


def _swap(one: Connection, two: Connection, copied: CopiedTable, indexes: dict[str, str]) -> bool:
    """The copy takes the table's place. False: somebody still reads an older state."""
    with _waiting(one, WRITERS_WAIT):
        # first what a writer takes first: it may make a day's table, and the views, too
        one.execute("SELECT pg_advisory_xact_lock(%s)", (lock_of(SERIAL_LOCK_ID, copied.schema),))
        # a writer that has read the table holds a lock, and would wait for ours with its next statement: a deadlock
        one.execute("SELECT pg_advisory_xact_lock(%s)", (lock_of(BESIDE_LOCK_ID, copied.schema),))
        one.execute(copied.sql("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))
        while _again(two, copied):
            pass
        if not _seen_by_all(one, two):
            return False
        one.execute(f"SET LOCAL lock_timeout = {int(1000 * READERS_WAIT)}".encode())
        one.execute(copied.sql("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        one.execute(copied.sql("ALTER TABLE {table} RENAME TO {bare_old}"))
        one.execute(copied.sql("ALTER TABLE {new} RENAME TO {bare_table}"))
        for body in _views(one):
            one.execute(body.encode())
        one.execute(copied.sql("DROP TABLE {old}, {noted}"))
        one.execute(copied.sql("DROP FUNCTION {note}"))
        for name, to in indexes.items():
            old = pgsql.Identifier(copied.schema, name)
            one.execute(pgsql.SQL("ALTER INDEX {} RENAME TO {}").format(old, pgsql.Identifier(to)))
    return True


def _views(one: Connection) -> list[str]:
    days = [day for (day,) in one.execute("SELECT day FROM t_days").fetchall()]
    made = [f"CREATE OR REPLACE VIEW {name} AS {body}" for name, body in schema.VIEW_QUERIES.items()]
    return made + schema.views_sql(days, keyed=True)


def _seen_by_all(one: Connection, two: Connection) -> bool:
    """Wait until nobody looks at a state from before what has been committed by now. False: that takes longer."""
    mine = [one.info.backend_pid, two.info.backend_pid]
    before = {name for (name,) in two.execute(OTHER_WRITERS_SQL, (mine,)).fetchall()}
    until = time.monotonic() + READERS_WAIT
    while before:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
        before &= {name for (name,) in two.execute(OTHER_WRITERS_SQL, (mine,)).fetchall()}
    return True


IN_ORDER = 0x511B57EC
"""Advisory lock: numbers that one reads on from are taken by one transaction at a time."""
READER_ROLE = "slipstream_reader"
"""Role that users' queries run as where we may make one: it sees the views and nothing else."""
FORBIDDEN_SQL_PATTERN = re.compile(
    r"\b(pg_read\w*|pg_ls\w*|pg_stat_file|pg_file\w*|lo_\w+|dblink\w*|set_config|pg_terminate\w*|pg_cancel\w*|"
    r"pg_reload\w*|pg_rotate\w*|pg_switch\w*|pg_advisory\w*|pg_try_advisory\w*|query_to_\w+|table_to_\w+|"
    r"cursor_to_\w+|database_to_\w+|schema_to_\w+|nextval|setval|pg_sleep\w*|pg_notify|into|pg_\w+|"
    r"information_schema)\b",
    re.IGNORECASE,
)
CLIENT_CHECK = "5s"
"""How often the server looks whether the asker of a running query is still there."""
COLUMN_TYPES = {
    "TEXT": "text",
    "FLOAT8": "float8",
    "BIGINT": "int8",
    "INTEGER": "int4",
    "BOOLEAN": "bool",
    "BYTEA": "bytea",
}


@lru_cache(maxsize=1024)
def translate(statement: str) -> bytes:
    """Our ``?`` as psycopg's ``%s``."""
    return statement.replace("%", "%%").replace("?", "%s").encode()


class PostgresTx:
    alone = False

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
        arrays = ", ".join(f"%s::{COLUMN_TYPES[kinds[c]]}[]" for c in names)
        sets = ", ".join(f"{c} = s.{c}" for c in columns)
        same = " AND ".join(f"{table}.{k} = s.{k}" for k in keys)
        statement = f"UPDATE {table} SET {sets} FROM unnest({arrays}) AS s({', '.join(names)}) WHERE {same}"
        self._cursor.execute(statement.encode(), [list(column) for column in zip(*rows, strict=True)])


NARROW_TABLES = frozenset(("t_tallies", "t_members", "t_exported", "t_gaps", "t_outcomes"))
"""Tables of short rows, without a name to copy them by. They are locked while they are rewritten."""
SHORT_LOCK_TIMEOUT = "1s"
MAX_CONNECTIONS, CONNECTION_TIMEOUT_S = 8, 30.0
"""Of the pool, and seconds that one is waited for."""


def watch_client(connection: psycopg.Connection) -> None:
    """Let the server end a query whose asker is gone: a control plane that was killed would leave it working on."""
    with suppress(psycopg.Error):  # servers before 14 can't
        connection.execute(f"SET client_connection_check_interval = '{CLIENT_CHECK}'".encode())


def is_pooled(connection: psycopg.Connection) -> bool:
    """Whether a pool such as PgBouncer stands before the server: it gives connections numbers of its own."""
    ((number,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
    return int(number) != connection.info.backend_pid


def _own_schema(connection: psycopg.Connection) -> str:
    """The schema that the URL names, which is made if there is none."""
    ((schema, path),) = connection.execute("SELECT current_schema(), current_setting('search_path')").fetchall()
    if schema is None:
        schema = str(path).split(",")[0].strip().strip('"')
        connection.execute(pgsql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(pgsql.Identifier(schema)))
    return str(schema)


def drop_schema(url: str, schema: str) -> str | None:
    """Delete a tenant's tables for good, and the role that reads them. → Why that cannot be."""
    role = f"{READER_ROLE}_{schema}"
    try:
        with psycopg.connect(url, connect_timeout=10, autocommit=True) as con:
            con.execute("SET lock_timeout = '10s'")
            con.execute(pgsql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(pgsql.Identifier(schema)))
            if con.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                with contextlib.suppress(
                    psycopg.errors.InsufficientPrivilege, psycopg.errors.DependentObjectsStillExist
                ):
                    con.execute(pgsql.SQL("DROP ROLE {}").format(pgsql.Identifier(role)))
    except psycopg.Error as e:
        return without_password(str(e).strip().splitlines()[0])
    return None


class PostgresDriver:
    shared = True
    lock_rows = " FOR UPDATE SKIP LOCKED"
    on_conflict = " ON CONFLICT DO NOTHING"
    rebuilt = False

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            # One plain connection first: the pool would try again and again, and say less.
            with psycopg.connect(url, connect_timeout=10) as con:
                self._through_pool = is_pooled(con)
                self._schema = _own_schema(con)
        except psycopg.Error as e:
            raise StoreError(f"PostgreSQL cannot be reached: {str(e).strip().splitlines()[0]}") from e
        # Through a pool, a session is another client's in a moment: nothing may stay behind in it.
        own = {} if not self._through_pool else {"prepare_threshold": None}
        self._pool = ConnectionPool(
            url,
            min_size=1,
            max_size=MAX_CONNECTIONS,
            open=False,
            kwargs={"autocommit": True, **own},
            check=ConnectionPool.check_connection,
            configure=None if self._through_pool else watch_client,
            timeout=CONNECTION_TIMEOUT_S,
        )
        try:
            self._pool.open(wait=True)
        except (psycopg.Error, PoolTimeout) as e:
            self._pool.close()
            raise StoreError(f"PostgreSQL cannot be reached: {str(e).strip().splitlines()[0]}") from e
        self._reader: str | None = None
        self._rewriting = Rewriting()
        with self.write() as tx:
            tx.run("CREATE SEQUENCE IF NOT EXISTS slipstream_seq")

    def _need_session(self, what: str) -> None:
        if self._through_pool:
            raise StoreError(
                f"{what} needs a session of its own, and store.url leads to a pool of connections (PgBouncer): let it "
                "name PostgreSQL itself"
            )

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
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (lock_of(SERIAL_LOCK_ID, self._schema),))
            else:
                cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", (lock_of(BESIDE_LOCK_ID, self._schema),))
            yield PostgresTx(cursor)

    def next_seq(self, tx: Any, count: int) -> int:
        return min(int(n) for (n,) in tx.all("SELECT nextval('slipstream_seq') FROM generate_series(1, ?)", (count,)))

    def in_order(self, tx: Any) -> None:
        tx.all("SELECT pg_advisory_xact_lock(?)", (lock_of(IN_ORDER, self._schema),))

    def settle(self) -> None:
        """PostgreSQL's own WAL has it."""

    def reread(self) -> AbstractContextManager[PostgresTx]:
        """PostgreSQL answers for what it has committed."""
        return self.read()

    def file_missing(self) -> bool:
        """PostgreSQL looks after its own files."""
        return False

    def copy_to(self, folder: Path, *, but: Collection[str] = ()) -> Path:
        """``pg_dump``'s form for ``pg_restore``. The program must be at least as new as the server.

        A tenant's schema alone, else all schemas but those of ``but``.
        """
        self._need_session("a dump")
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), key=lambda p: float(p.parts[-3]))
        program = str(found[-1]) if found else shutil.which("pg_dump")
        if program is None:
            raise StoreError("there is no pg_dump on the proxy's machine")
        copy = folder / "slipstream.dump"
        asked = conninfo_to_dict(self._url)
        secret = asked.pop("password", None)  # every user of the machine may read a program's arguments
        argv = [program, "--format=custom", f"--file={copy}", f"--dbname={make_conninfo('', **asked)}"]
        if is_tenants(self._schema):  # the URL's search path keeps no other schema out
            argv.append(f'--schema="{self._schema}"')
        argv += [f'--exclude-schema="{schema}"' for schema in but]
        with cores.anywhere():
            env = {**os.environ, **({"PGPASSWORD": str(secret)} if secret else {})}
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StoreError(f"pg_dump: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
        return copy

    def put_file_back(self) -> None:
        """There is none of ours."""

    def rewrite(self, tables: Sequence[str]) -> None:
        """By copies that take their places (``copy_tables``)."""
        self._need_session("rewriting files without what was forgotten")
        with self._pool.connection() as con, self._pool.connection() as other:
            copy_tables(con, other, [t for t in tables if t not in NARROW_TABLES], self._rewriting)
            self._rewrite_narrow(con, sorted(NARROW_TABLES.intersection(tables)))
            # Pages of the old files may still stand in the log: the oldest segments are used again from here on.
            try:
                con.execute("CHECKPOINT")
            except psycopg.errors.InsufficientPrivilege:
                log.debug("not allowed to CHECKPOINT: the server will in its own time")

    def _rewrite_narrow(self, con: psycopg.Connection, tables: Sequence[str]) -> None:
        con.execute(f"SET lock_timeout = '{SHORT_LOCK_TIMEOUT}'".encode())
        try:
            for table in tables:
                con.execute(f"VACUUM FULL {table}".encode())
        except psycopg.errors.LockNotAvailable as e:
            raise StoreError(f"a table is in use: it is rewritten later ({str(e).splitlines()[0]})") from e
        finally:
            con.execute(b"RESET lock_timeout")

    def give_up(self) -> None:
        self._rewriting.give_up()

    def free_share(self) -> float:
        """PostgreSQL's own vacuum uses free pages again."""
        return 0.0

    def grant(self) -> None:
        """Make the role that users' queries run as, where we may."""
        try:
            with self.write() as tx:
                ((namespace,),) = tx.all("SELECT quote_ident(current_schema())")
                # each tenant has a role of its own, which sees no other's schema
                role = f"{READER_ROLE}_{namespace}" if is_tenants(self._schema) else READER_ROLE
                if not tx.all("SELECT 1 FROM pg_roles WHERE rolname = ?", (role,)):
                    tx.run(f"CREATE ROLE {role} NOLOGIN")
                    tx.run(f"GRANT {role} TO CURRENT_USER")
                tx.run(f"GRANT USAGE ON SCHEMA {namespace} TO {role}")
                tx.run(f"GRANT SELECT ON {', '.join(schema.VIEW_NAMES)} TO {role}")
                # Somebody else may have made the role: then we are no member of it.
                tx.run(f"SET LOCAL ROLE {role}")
            self._reader = role
        except psycopg.Error as e:
            self._reader = None
            log.debug("no reading role of its own for queries: %s", e)

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        text = check(query)
        if found := FORBIDDEN_SQL_PATTERN.search(bare(text)):
            raise QueryError(
                f"{found.group(0)}: not in a query here; there are the views {', '.join(schema.VIEW_NAMES)}"
            )
        if is_tenants(self._schema) and self._reader is None:
            raise QueryError("a tenant's queries need a role of their own: grant CREATEROLE to the user of store.url")
        role = self._reader
        request = QueryRequest(
            database=self._url, config={}, role=role, query=text, limit=limit, timeout=timeout, archive=None
        )
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
