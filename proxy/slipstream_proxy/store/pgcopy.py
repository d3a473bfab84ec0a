"""A PostgreSQL table rewritten beside reads and writes: a plain ``VACUUM`` leaves deleted text in its pages, and
``VACUUM FULL`` stops everybody who uses the table.

A copy takes the table's place. A trigger notes which rows change meanwhile, and these are copied again until few are
left. Then writers wait for a moment while the last ones are copied. Readers see the copy only once each of them can see
all of its rows. A kill leaves the old table as it is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
from psycopg import sql as pgsql

from slipstream_proxy.store import schema
from slipstream_proxy.store.driver import Row, StoreError

log = logging.getLogger("slipstream.store")

SERIAL = 0x511B57EA
"""Advisory lock of transactions that run one at a time over all proxies."""
REWRITING = 0x511B57EB
"""Advisory lock: one proxy rewrites at a time."""
NEW, OLD, NOTED = "__new", "__old", "__noted"
"""Ends of names: the copy, what it replaces, the keys of rows that have changed."""
TOGETHER = 20_000
"""Noted rows that are copied again in one transaction."""
LITTLE = 200
"""Noted rows with which the last step begins."""
ROUNDS = 10
"""Attempts to come near a table that is written to as fast as it can be; then its writers wait for the rest."""
WRITERS_WAIT, READERS_WAIT = 1.5, 0.25
"""Seconds that the last step waits for writers and for readers to end; others of their kind wait behind it."""
SWAP_TRIES = 120
REST = 0.5
"""Seconds between two tries."""

Connection = psycopg.Connection[Row]
OTHERS = """SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
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
        bare = {"new": self.name + NEW, "old": self.name + OLD, "noted": self.name + NOTED, "table": self.name}
        names: dict[str, pgsql.Composable] = {n: pgsql.Identifier(self.schema, name) for n, name in bare.items()}
        names |= {f"bare_{n}": pgsql.Identifier(name) for n, name in bare.items()}
        names |= {"key": pgsql.Identifier(self.key), "trigger": pgsql.Identifier("slipstream_noted")}
        names["note"] = pgsql.Identifier(self.schema, f"{self.name}__note")
        return pgsql.SQL(text).format(**names).as_bytes(None)


def copy_tables(one: Connection, two: Connection, tables: list[str], rewriting: Rewriting) -> None:
    """Rewrite each. Two connections without a transaction. Raises ``StoreError`` when it can't be done now."""
    if not one.execute("SELECT pg_try_advisory_lock(%s)", (REWRITING,)).fetchall()[0][0]:
        raise StoreError("another proxy rewrites its tables just now")
    try:
        ((namespace,),) = one.execute("SELECT current_schema()").fetchall()
        clear(one, namespace)
        for table in tables:
            if one.execute("SELECT to_regclass(%s)", (f"{namespace}.{table}",)).fetchall()[0][0] is not None:
                key = "id" if table.startswith("t_calls_") else schema.PRIMARY[table]
                with rewriting.by(one):
                    _copy(one, two, CopiedTable(namespace, table, key), rewriting)
    except psycopg.errors.QueryCanceled as e:
        raise StoreError(f"the rewriting was cut off: {str(e).splitlines()[0]}") from e
    except psycopg.errors.LockNotAvailable as e:
        raise StoreError(f"a table is in use: it is rewritten later ({str(e).splitlines()[0]})") from e
    finally:
        with contextlib.suppress(psycopg.Error):
            clear(one, namespace)
        one.execute("SELECT pg_advisory_unlock(%s)", (REWRITING,))


def clear(one: Connection, namespace: str) -> None:
    """Drop what a rewriting that was cut off has left. The lock ``REWRITING`` is held."""
    sql = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND right(tablename, %s) = %s"
    for (noted,) in one.execute(sql, (namespace, len(NOTED), NOTED)).fetchall():
        copied = CopiedTable(namespace, noted.removesuffix(NOTED), "id")
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
    for _ in range(ROUNDS):
        rewriting.go_on()
        if _again(one, copied) <= LITTLE:
            break
    _check(one, copied)
    for _ in range(SWAP_TRIES):
        rewriting.go_on()
        try:
            if _swap(one, two, copied, indexes):
                return
        except psycopg.errors.LockNotAvailable:
            log.debug("the new %s waits for those who use the old one", copied.name)
        time.sleep(REST)
        _again(two, copied)
    raise StoreError(f"{copied.name} is in use all the time: it is rewritten later")


def _make_indexes(one: Connection, copied: CopiedTable) -> dict[str, str]:
    """→ Names of the copy's indexes, and what they are called once it has taken the table's place."""
    sql = """SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indisprimary FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s::regclass"""
    named = pgsql.Identifier(copied.schema, copied.name).as_string(None)
    found = {}
    for name, made, primary in one.execute(sql, (named,)).fetchall():
        found[name + NEW] = name
        to = f" ON {copied.sql('{new}').decode()} USING "
        begin = f"CREATE {'UNIQUE ' if primary else ''}INDEX {pgsql.Identifier(name + NEW).as_string(None)}"
        one.execute((begin + to + made.partition(" USING ")[2]).encode())
        if primary:
            text = f"ALTER TABLE {{new}} ADD PRIMARY KEY USING INDEX {pgsql.Identifier(name + NEW).as_string(None)}"
            one.execute(copied.sql(text))
    return found


def _again(one: Connection, copied: CopiedTable) -> int:
    """Copy the rows that have changed again. → How many were noted."""
    with one.transaction():
        taken = one.execute(
            copied.sql("DELETE FROM {noted} WHERE n IN (SELECT n FROM {noted} ORDER BY n LIMIT %s) RETURNING k"),
            (TOGETHER,),
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
        one.execute("SELECT pg_advisory_xact_lock(%s)", (SERIAL,))
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
    made = [f"CREATE OR REPLACE VIEW {name} AS {body}" for name, body in schema.VIEWS.items()]
    return made + schema.views_sql(days, keyed=True)


def _seen_by_all(one: Connection, two: Connection) -> bool:
    """Wait until nobody looks at a state from before what has been committed by now. False: that takes longer."""
    mine = [one.info.backend_pid, two.info.backend_pid]
    before = {name for (name,) in two.execute(OTHERS, (mine,)).fetchall()}
    until = time.monotonic() + READERS_WAIT
    while before:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
        before &= {name for (name,) in two.execute(OTHERS, (mine,)).fetchall()}
    return True
