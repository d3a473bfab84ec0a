"""The tables, in types that DuckDB and PostgreSQL share, and how an older schema becomes this one.

No foreign keys; on DuckDB few indexes (``DUCKDB_INDEXES``: names that are looked up one at a time; the rest is scanned
fast, and commits pay for an index). Token ids are BYTEA of little-endian int32, log-probabilities of float32, JSON
is TEXT. Calls stand in one table per UTC day of the call's start, ``t_calls_YYYYMMDD``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import NoneType
from typing import get_args, get_type_hints

from slipstream import __version__
from slipstream.shared.files import release_of
from slipstream_proxy.store.tables.driver import Driver, StoreError, Tx
from slipstream_proxy.store.tables.rows import BatchRow, CallRow, EpisodeRow, GroupRow, MemberRow, PinRow, RewardRow
from slipstream_proxy.store.tables.tallies import drop_tallies

SCHEMA_VERSION = 7

SQL_TYPES = {str: "TEXT", float: "FLOAT8", int: "INTEGER", bool: "BOOLEAN", bytes: "BYTEA"}


def columns_like(row: type[object], *, big: Collection[str] = ()) -> dict[str, str]:
    """Column → type of a table that holds such rows. ``big``: integers of 64 bits."""
    made = {}
    for name, kind in get_type_hints(row).items():
        (plain,) = {*(get_args(kind) or (kind,))} - {NoneType}
        made[name] = "BIGINT" if name in big else SQL_TYPES[plain]
    return made


CALL_COLUMNS = columns_like(CallRow)
"""``eid`` is key/episode. What is stored of messages, tools and prompt_ids is what call ``delta_base`` does not have
(``delta``); ``extends`` is the call whose conversation this one goes on with (``tree``)."""

TABLE_COLUMNS: dict[str, dict[str, str]] = {
    "t_meta": {"name": "TEXT", "value": "TEXT"},
    "t_days": {"day": "TEXT"},
    "t_positions": {"instance": "TEXT", "writer": "TEXT", "segment": "BIGINT", "pos": "BIGINT"},
    "t_seen": {"id": "TEXT", "ts": "FLOAT8"},
    "t_episodes": columns_like(EpisodeRow, big=("prompt_tokens", "completion_tokens")),
    "t_early": {"eid": "TEXT", "ts": "FLOAT8"},
    "t_rewards": columns_like(RewardRow, big=("seq",)),
    "t_stamps": {"id": "TEXT", "boot": "TEXT", "tick": "FLOAT8", "ts": "FLOAT8"},
    "t_expired": {"eid": "TEXT", "ts": "FLOAT8"},
    "t_pins": columns_like(PinRow),
    "t_groups": columns_like(GroupRow),
    "t_batches": columns_like(BatchRow),
    "t_members": columns_like(MemberRow),
    "t_adapters": {
        "name": "TEXT", "model": "TEXT", "version": "INTEGER", "state": "TEXT", "created": "FLOAT8",
        "decided": "FLOAT8", "body": "TEXT", "reason": "TEXT",
    },
    "t_events": {"id": "BIGINT", "ts": "FLOAT8", "kind": "TEXT", "data": "TEXT"},
    "t_audit": {
        "id": "TEXT", "ts": "FLOAT8", "key": "TEXT", "name": "TEXT", "action": "TEXT", "target": "TEXT", "data": "TEXT",
    },
    "t_cache": {"id": "TEXT", "value": "TEXT", "ts": "FLOAT8"},
    "t_exports": {"id": "TEXT", "ts": "FLOAT8", "format": "TEXT"},
    "t_exported": {"export": "TEXT", "eid": "TEXT"},
    "t_outcomes": {
        "seq": "BIGINT", "eid": "TEXT", "model": "TEXT", "adapter": "TEXT", "arm": "TEXT", "chances": "TEXT",
        "task": "TEXT", "reward": "FLOAT8", "ts": "FLOAT8",
    },
    "t_gaps": {"call": "TEXT", "choice": "INTEGER", "eid": "TEXT", "batch": "TEXT", "gaps": "BYTEA", "ts": "FLOAT8"},
    "t_case_sets": {"name": "TEXT", "version": "INTEGER", "changed": "FLOAT8"},
    "t_cases": {
        "name": "TEXT", "eid": "TEXT", "version": "INTEGER", "gone": "INTEGER", "task": "TEXT", "tags": "TEXT",
        "reward": "FLOAT8", "calls": "INTEGER", "ts": "FLOAT8", "body": "TEXT",
    },
    "t_rewrite": {"tab": "TEXT"},
    "t_erasing": {"eid": "TEXT", "ts": "FLOAT8", "instance": "TEXT", "tables": "TEXT", "archives": "TEXT"},
    "t_tallies": {
        "name": "TEXT", "label": "TEXT", "n": "BIGINT", "x": "FLOAT8", "y": "FLOAT8", "low": "FLOAT8", "high": "FLOAT8",
    },
    "t_calls_none": CALL_COLUMNS,
}  # fmt: skip

PRIMARY_KEYS: dict[str, str] = {
    "t_meta": "name", "t_days": "day", "t_positions": "instance, writer", "t_seen": "id", "t_episodes": "eid",
    "t_early": "eid", "t_rewards": "id", "t_stamps": "id", "t_expired": "eid", "t_pins": "eid", "t_groups": "id",
    "t_batches": "id",
    "t_members": "batch, eid", "t_adapters": "name", "t_events": "id", "t_audit": "id", "t_cache": "id",
    "t_rewrite": "tab", "t_outcomes": "seq", "t_exports": "id", "t_exported": "eid, export", "t_gaps": "call, choice",
    "t_case_sets": "name", "t_cases": "name, eid, version",
}  # fmt: skip
"""Keys where the database wants indexes (PostgreSQL)."""

TABLE_INDEXES = (
    "CREATE INDEX IF NOT EXISTS i_rewards_eid ON t_rewards (eid)",
    "CREATE INDEX IF NOT EXISTS i_episodes_grp ON t_episodes (grp)",
    "CREATE INDEX IF NOT EXISTS i_episodes_running ON t_episodes (last_end) WHERE state = 'open'",
    "CREATE INDEX IF NOT EXISTS i_episodes_started ON t_episodes (started, eid)",
    "CREATE INDEX IF NOT EXISTS i_episodes_id ON t_episodes (id)",
    "CREATE INDEX IF NOT EXISTS i_pins_active ON t_pins (adapter) WHERE active",
    "CREATE INDEX IF NOT EXISTS i_groups_state ON t_groups (state, ready_at)",
    "CREATE INDEX IF NOT EXISTS i_groups_bucket ON t_groups (bucket)",
    "CREATE INDEX IF NOT EXISTS i_members_eid ON t_members (eid)",
    "CREATE INDEX IF NOT EXISTS i_outcomes_model ON t_outcomes (model, seq)",
    "CREATE INDEX IF NOT EXISTS i_cases_eid ON t_cases (eid)",
    "CREATE INDEX IF NOT EXISTS i_outcomes_eid ON t_outcomes (eid)",
)

DUCKDB_INDEXES = {
    "d_episodes_eid": "t_episodes (eid)",
    "d_episodes_id": "t_episodes (id)",
    "d_episodes_grp": "t_episodes (grp)",
    "d_rewards_eid": "t_rewards (eid)",
    "d_pins_eid": "t_pins (eid)",
    "d_members_eid": "t_members (eid)",
    "d_groups_id": "t_groups (id)",
}
"""On DuckDB. A table that has one may get columns, and is else not to be altered: migrations find them dropped."""

VIEW_QUERIES: dict[str, str] = {
    "episodes": """SELECT id, key, task, split, tags, model, adapter, arm, state, started,
        CASE WHEN ended IS NULL THEN NULL ELSE greatest(ended, last_end) END AS ended, calls, prompt_tokens,
        completion_tokens, reward, grp AS group_id, error,
        CASE WHEN error IS NULL THEN state ELSE 'failed' END AS outcome FROM t_episodes WHERE state <> 'deleted'""",
    "rewards": """SELECT r.id, split_part(r.eid, '/', 2) AS episode, split_part(r.eid, '/', 1) AS key, r.call, r.name,
        r.source, r.value, r.reason, r.ts, e.adapter, r.seq FROM t_rewards r LEFT JOIN t_episodes e ON e.eid = r.eid""",
    "adapters": "SELECT name, model, version, state, created, decided, reason FROM t_adapters",
}
CALLS_VIEW = """SELECT id, split_part(eid, '/', 2) AS episode, split_part(eid, '/', 1) AS key, number, ts, seconds,
    dialect, model, trained, adapter, status, outcome, trainable, reason AS untrainable_reason, temperature, sampling,
    prompt_tokens, completion_tokens, finish, reply, error, attempt, extends, {kind} AS kind FROM """
MESSAGES_VIEW = """SELECT split_part(c.eid, '/', 2) AS episode, split_part(c.eid, '/', 1) AS key, c.id AS call,
    c.number, {kind} AS kind, {first} + CAST(m.nth AS INTEGER) AS nth, {role} AS role,
    CAST(m.message AS TEXT) AS message FROM {table} c, {unnested} WITH ORDINALITY AS m(message, nth)"""
VIEW_NAMES = ("episodes", "calls", "messages", "rewards", "adapters")


def day_of(at: float) -> str:
    """UTC day of a time, ``YYYY-MM-DD``. A clock that is out of all range counts as the epoch's or the last day."""
    return _day(int(min(max(at, 0.0), 253_402_300_799.0) // 86_400))


@lru_cache(maxsize=64)
def _day(number: int) -> str:
    return datetime.fromtimestamp(86_400 * number, UTC).strftime("%Y-%m-%d")


def table_of(day: str) -> str:
    """The table of a day's calls."""
    return "t_calls_" + day.replace("-", "")


@dataclass(frozen=True, slots=True)
class ExtensionTable:
    """A table of a plug-in: column → type, and the one column that tells its rows apart."""

    columns: Mapping[str, str]
    key: str


EXTENSION_PREFIX = "t_plugin_"
EXTENSION_TABLES: dict[str, ExtensionTable] = {}
"""Shapes of plug-ins' tables (``extensions.prepare``), by their names in SQL. A table has one shape in a process."""


def columns_of(table: str) -> Mapping[str, str]:
    """Column → type of a table."""
    if table in EXTENSION_TABLES:
        return EXTENSION_TABLES[table].columns
    return CALL_COLUMNS if table.startswith("t_calls_") else TABLE_COLUMNS[table]


def key_of(table: str) -> str | None:
    """Its primary key, where the database wants one."""
    if table in EXTENSION_TABLES:
        return EXTENSION_TABLES[table].key
    return "id" if table.startswith("t_calls_") else PRIMARY_KEYS.get(table)


def create_sql(table: str, *, keyed: bool) -> list[str]:
    """DDL of one table. ``keyed``: with its primary key."""
    body = ", ".join(f"{name} {kind}" for name, kind in columns_of(table).items())
    calls = table.startswith("t_calls_")
    key = key_of(table) if keyed else None
    made = [f"CREATE TABLE IF NOT EXISTS {table} ({body}{f', PRIMARY KEY ({key})' if key else ''})"]
    if calls and keyed:
        made.append(f"CREATE INDEX IF NOT EXISTS i_{table}_eid ON {table} (eid)")
    return made


def views_sql(days: Iterable[str], *, keyed: bool) -> list[str]:
    """The views over all days' tables: ``calls``, and ``messages`` (each once). ``keyed``: on PostgreSQL."""
    tables = ["t_calls_none", *(table_of(d) for d in sorted(days))]
    found = (
        """substring(extra FROM '"kind": *"([^"]*)"')"""
        if keyed
        else """regexp_extract(extra, '"kind": *"([^"]*)"', 1)"""
    )
    kind = f"coalesce(nullif({found}, ''), 'main')"
    calls = " UNION ALL ".join(CALLS_VIEW.format(kind=kind) + t for t in tables)
    parts = {"prompt": ("c.messages", "c.keep_messages"), "reply": ("c.reply", "0")}
    unnested = "json_array_elements(CAST({} AS JSON))" if keyed else "unnest(CAST({} AS JSON[]))"
    # PostgreSQL's ->> refuses a message with a NUL anywhere in it
    role = """substring(CAST(m.message AS TEXT) FROM '"role" *: *"([^"\\\\]*)"')""" if keyed else "m.message ->> 'role'"
    messages = " UNION ALL ".join(
        MESSAGES_VIEW.format(kind=f"'{kind}'", first=first, table=table, unnested=unnested.format(column), role=role)
        for table in tables
        for kind, (column, first) in parts.items()
    )
    return [f"CREATE OR REPLACE VIEW calls AS {calls}", f"CREATE OR REPLACE VIEW messages AS {messages}"]


ARCHIVED_COLUMNS = (
    *("id", "key", "episode", "number", "at", "seconds", "dialect", "model", "trained", "adapter", "status", "outcome"),
    *("trainable", "untrainable_reason", "temperature", "sampling", "prompt_tokens", "completion_tokens", "finish"),
    *("reply", "error", "attempt", "extends", "kind", "messages", "keep_messages"),
)
"""Of an archived day, that the views show."""


def archived_views_sql() -> list[str]:
    """The views of DuckDB with archived days, which ``archived`` holds, in place of those that ``{live}`` has.

    ``{late}``: a condition on archived calls.
    """
    own = "to_json(CAST(messages AS JSON[])[coalesce(keep_messages, 0) + 1:])"
    rows = f"""SELECT key || '/' || episode AS eid, "at" AS ts, untrainable_reason AS reason, {own} AS messages,
        coalesce(keep_messages, 0) AS keep_messages, coalesce(kind, 'main') AS kind, id, number, seconds, dialect,
        model, trained, adapter, status, outcome, trainable, temperature, sampling, prompt_tokens,
        completion_tokens, finish, reply, error, attempt, extends FROM archived WHERE {{late}}"""
    messages = " UNION ALL ".join(
        MESSAGES_VIEW.format(
            kind=f"'{kind}'",
            first=first,
            table="archived_calls",
            unnested=f"unnest(CAST(c.{column} AS JSON[]))",
            role="m.message ->> 'role'",
        )
        for kind, (column, first) in {"prompt": ("messages", "c.keep_messages"), "reply": ("reply", "0")}.items()
    )
    calls = CALLS_VIEW.format(kind="kind") + "archived_calls"
    return [
        f"CREATE TEMP VIEW archived_calls AS {rows}",
        f"CREATE TEMP VIEW calls AS SELECT * FROM {{live}}.calls UNION ALL {calls}",
        f"CREATE TEMP VIEW messages AS SELECT * FROM {{live}}.messages UNION ALL {messages}",
    ]


def _failed_runs(tx: Tx) -> None:
    """Version 7: a run in which the model never said anything has its error, and counts as no run."""
    tx.run("ALTER TABLE t_episodes ADD COLUMN error TEXT")
    # a version that was published late has its batches, too
    for name, body in tx.all("SELECT name, body FROM t_adapters"):
        for batch in json.loads(body).get("batches") or ():
            sql = "UPDATE t_batches SET adapter = ? WHERE adapter IS NULL AND state = 'trained' AND id = ?"
            tx.run(sql, (name, batch))


SCHEMA_MIGRATIONS: dict[int, Callable[[Tx], None]] = {6: _failed_runs}
"""From version n to n + 1. No release wrote a version below 6."""


class NewerSchema(StoreError):
    """A newer program made this store what it is."""

    def __init__(self, found: int, wrote: str | None) -> None:
        """``wrote``: the program that changed it last, as far as it says."""
        text = f"the store's schema is version {found}, which slipstream {wrote or 'of a later release'} wrote"
        fix = f"install {release_of(wrote, __version__) if wrote else 'a newer one'}"
        super().__init__(f"{text}, and {__version__} knows {SCHEMA_VERSION}: {fix}")


def _writer(tx: Tx) -> str | None:
    found = tx.all("SELECT value FROM t_meta WHERE name = 'program'")
    return str(found[0][0]) if found else None


def prepare(tx: Tx, *, keyed: bool) -> None:
    """Create what is missing and migrate what is older. Raises ``StoreError`` for a schema newer than this code, and
    for one that no release wrote.
    """
    tx.run("CREATE TABLE IF NOT EXISTS t_meta (name TEXT, value TEXT" + (", PRIMARY KEY (name))" if keyed else ")"))
    found = tx.all("SELECT value FROM t_meta WHERE name = 'schema'")
    if found and int(found[0][0]) > SCHEMA_VERSION:
        raise NewerSchema(int(found[0][0]), _writer(tx))
    if found and int(found[0][0]) < min(SCHEMA_MIGRATIONS):
        text = (
            f"the store's schema is version {found[0][0]}, which no release wrote, and {__version__} does not read it"
        )
        raise StoreError(f"{text}: let data_dir and store.url name new places")
    for name in DUCKDB_INDEXES if found and int(found[0][0]) < SCHEMA_VERSION and not keyed else ():
        tx.run(f"DROP INDEX IF EXISTS {name}")
    for version in range(int(found[0][0]) if found else SCHEMA_VERSION, SCHEMA_VERSION):
        SCHEMA_MIGRATIONS[version](tx)
    for table in TABLE_COLUMNS:
        for statement in create_sql(table, keyed=keyed):
            tx.run(statement)
    for statement in TABLE_INDEXES if keyed else ():
        tx.run(statement)
    for name, columns in () if keyed else DUCKDB_INDEXES.items():
        tx.run(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")
    for name, body in VIEW_QUERIES.items():
        tx.run(f"CREATE OR REPLACE VIEW {name} AS {body}")
    for statement in views_sql([d for (d,) in tx.all("SELECT day FROM t_days")], keyed=keyed):
        tx.run(statement)
    if not found:
        tx.run("INSERT INTO t_meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
    elif int(found[0][0]) != SCHEMA_VERSION:
        tx.run("UPDATE t_meta SET value = ? WHERE name = 'schema'", (str(SCHEMA_VERSION),))
    if not found or int(found[0][0]) != SCHEMA_VERSION:
        tx.run("DELETE FROM t_meta WHERE name = 'program'")
        tx.run("INSERT INTO t_meta VALUES ('program', ?)", (__version__,))


class DayTables:
    def __init__(self, db: Driver) -> None:
        self.db = db
        with db.read() as tx:
            self._days = {day for (day,) in tx.all("SELECT day FROM t_days")}

    def all(self) -> list[str]:
        """Days with calls, ``YYYY-MM-DD``, oldest first."""
        with self.db.read() as tx:
            return [day for (day,) in tx.all("SELECT day FROM t_days ORDER BY day")]

    def tables(self, tx: Tx, since: float | None = None, until: float | None = None) -> list[str]:
        """Tables of the days from ``since`` to ``until`` that there are, oldest first."""
        days = self._days if tx.alone else {day for (day,) in tx.all("SELECT day FROM t_days")}
        first = "" if since is None else day_of(since)
        last = "~" if until is None else day_of(until)
        return [table_of(day) for day in sorted(days) if first <= day <= last]

    def tables_of(self, tx: Tx, eps: Collection[EpisodeRow]) -> list[str]:
        """Tables that may hold calls of these episodes."""
        return self.tables(tx, min(e.started for e in eps), max(e.last_at for e in eps)) if eps else []

    def ensure(self, days: Iterable[str]) -> None:
        """Make the tables of these days where they are missing, and the view over all of them."""
        missing = sorted(set(days) - self._days)
        if not missing:
            return
        with self.db.write() as tx:
            known = {day for (day,) in tx.all("SELECT day FROM t_days")}
            for day in missing:
                if day not in known:
                    for statement in create_sql(table_of(day), keyed=self.db.shared):
                        tx.run(statement)
                    tx.run("INSERT INTO t_days VALUES (?)", (day,))
            self._views(tx, known | set(missing))
        self._days |= known | set(missing)
        self.db.settle()

    def drop(self, day: str, archived: int | None = None) -> int:
        """Drop a day's calls, text and tokens. → Calls dropped.

        ``archived``: how many there must be; with another number nothing is dropped.
        """
        with self.db.write() as tx:
            days = {d for (d,) in tx.all("SELECT day FROM t_days")}
            if day not in days:
                return 0
            table = table_of(day)
            if self.db.shared:
                tx.run(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            ((count,),) = tx.all(f"SELECT count(*) FROM {table}")
            if archived is not None and count != archived:
                return 0
            self._views(tx, days - {day})
            tx.run("DELETE FROM t_days WHERE day = ?", (day,))
            drop_tallies(tx, table)
            # an upstream's error may quote what it was asked, which goes with the calls
            sql = "UPDATE t_episodes SET error = split_part(error, ':', 1) WHERE error IS NOT NULL AND eid IN"
            tx.run(f"{sql} (SELECT DISTINCT eid FROM {table})")
            tx.run(f"DROP TABLE {table}")
        self._days.discard(day)
        self.db.settle()
        return int(count)

    def _views(self, tx: Tx, days: Collection[str]) -> None:
        for statement in views_sql(days, keyed=self.db.shared):
            tx.run(statement)
