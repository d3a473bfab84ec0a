"""The program that runs a user's query, in a process that can be killed.

It is run by its path and imports nothing of ours, for what the whole product imports takes a second of a core at each
query. Its input is a ``QueryRequest`` in a line, and ``open``. It says ``ready``, ``opened``, and a line of JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import re
import resource
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

if TYPE_CHECKING:
    import duckdb

QUERY_MEMORY_BYTES = 2**30
"""Bytes that a query may need, beside what the process has at its start."""
RESULT_BYTES = 64 * 2**20


class QueryFailed(Exception):
    """What the caller is told."""


class ArchiveRequest(TypedDict):
    """Days that left the store."""

    place: str
    """A folder, or one of an object store."""
    columns: dict[str, str]
    """Name → Arrow's name of its type."""
    views: list[str]
    """SQL that puts views over ``archived`` in the place of those over the store alone."""


class QueryRequest(TypedDict):
    """What the process reads first."""

    database: str
    """A DuckDB file's path, or a PostgreSQL URL."""
    config: dict[str, str]
    """DuckDB's."""
    role: str | None
    """PostgreSQL's role to run as."""
    query: str
    limit: int
    timeout: float
    archive: ArchiveRequest | None
    """None: the query names none of its views, or there is none."""


def public(value: Any) -> Any:
    """A database's value as JSON takes it."""
    match value:
        case None | bool() | int() | float() | str():
            if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
                return None
            return value
        case Decimal():
            return public(float(value))
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case list() | tuple():
            return [public(v) for v in value]
        case dict():
            return {str(k): public(v) for k, v in value.items()}
        case dt.datetime() | dt.date() | dt.time() | dt.timedelta() | UUID():
            return str(value)
        case other:
            return str(other)


QUERY_THREADS = 2
"""DuckDB's, whatever the machine has: each takes address space, and 32 of them took all that a query may have."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def limit_self(timeout: float) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES + QUERY_MEMORY_BYTES
    seconds = math.ceil(timeout) + 2
    for limit, value in ((resource.RLIMIT_AS, size), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))


def say(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # who asked has given up
        os._exit(1)


TEMPORAL_TYPE_PATTERN = re.compile(
    r"\b(?:TIMESTAMP|TIME)(?:_NS|_MS|_S|TZ(?:_NS)?| WITH TIME ZONE)?\b(?! [A-Z\"])"
    r"|\b(?:DATE|INTERVAL|VARIANT)\b(?! [A-Z\"])"  # a field's name is followed by its type
)
"""DuckDB's types whose values Python cannot hold, or only with a package more."""
_QUOTED = re.compile(r"""("(?:[^"]|"")*"|'(?:[^']|'')*')""")


def as_texts(con: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], str]:
    """The columns of a query, and the query with its moments as the database prints them."""
    described = con.execute(f"DESCRIBE {query}").fetchall()
    columns = [str(row[0]) for row in described]
    told = [(str(row[1]), _plain_type(str(row[1]))) for row in described]
    if all(kind == plain for kind, plain in told):
        return columns, query
    names = [f"c{n}" for n in range(len(columns))]
    shown = [n if kind == plain else f"CAST({n} AS {plain})" for n, (kind, plain) in zip(names, told, strict=True)]
    return columns, f"SELECT {', '.join(shown)} FROM ({query}\n) AS q({', '.join(names)})"


def _plain_type(kind: str) -> str:
    """A type with texts in the place of moments. What stands in quotes is a name."""
    if kind.startswith("UNION("):  # its members are cast as a whole
        return "VARCHAR" if TEMPORAL_TYPE_PATTERN.search(_QUOTED.sub("", kind)) else kind
    return "".join(
        part if n % 2 else TEMPORAL_TYPE_PATTERN.sub("VARCHAR", part) for n, part in enumerate(_QUOTED.split(kind))
    )


ARCHIVE_NAME_PATTERN = re.compile(r"calls-(\d{4}-\d\d-\d\d)\.parquet")


def add_archive(con: duckdb.DuckDBPyConnection, archive: ArchiveRequest) -> None:
    """``calls`` and ``messages`` have archived days, too. Raises ``QueryFailed``."""
    import pyarrow as pa
    from pyarrow import dataset, fs

    place, kinds = archive["place"], archive["columns"]
    pa.set_cpu_count(QUERY_THREADS)
    pa.set_io_thread_count(QUERY_THREADS)
    try:
        if "://" in place:
            files, root = fs.FileSystem.from_uri(place)
        else:
            files, root = fs.LocalFileSystem(), str(Path(place).expanduser())
        listed = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        found = {name[1]: f.path for f in listed if (name := ARCHIVE_NAME_PATTERN.fullmatch(f.base_name))}
        if not found:
            return
        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in kinds.items()])
        con.register("archived", dataset.dataset([*found.values()], schema=schema, filesystem=files, format="parquet"))
    except (OSError, pa.ArrowException) as e:
        text = f"store.archive = {place!r} cannot be read: {str(e).splitlines()[0]}"
        raise QueryFailed(f"{text}; episodes and rewards can be asked for without it") from e
    days = {day for (day,) in con.execute("SELECT day FROM t_days").fetchall()}
    live = con.execute("SELECT current_database()").fetchall()[0][0]
    name = '"' + live.replace('"', '""') + '".main'
    # a call that came late waits in a table of its day until it is put to the archive
    late = f"id NOT IN (SELECT id FROM {name}.calls)" if days & found.keys() else "true"
    for view in archive["views"]:
        con.execute(view.format(live=name, late=late))


def run_duckdb(request: QueryRequest) -> dict[str, object]:
    """Raises ``QueryFailed`` or ``MemoryError``."""
    import duckdb

    limit_self(request["timeout"])
    say("ready")
    sys.stdin.readline()
    try:
        con = duckdb.connect(
            request["database"], read_only=True, config={**request["config"], "threads": str(QUERY_THREADS)}
        )
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        con.execute("BEGIN TRANSACTION READ ONLY")
        con.execute("SELECT count(*) FROM duckdb_tables()").fetchall()
    except duckdb.Error as e:
        raise QueryFailed(f"the store cannot be read just now: {str(e).splitlines()[0]}") from e
    say("opened")
    timer = threading.Timer(request["timeout"], con.interrupt)
    timer.daemon = True
    timer.start()
    try:
        if request["archive"]:
            add_archive(con, request["archive"])
        columns, query = as_texts(con, request["query"])
        rows = con.execute(query).fetchmany(request["limit"] + 1)
    except duckdb.InterruptException as e:
        raise QueryFailed(f"stopped after {request['timeout']:g} s") from e
    except duckdb.OutOfMemoryException as e:
        raise MemoryError from e
    except duckdb.Error as e:
        raise QueryFailed(str(e).splitlines()[0]) from e
    return _result(columns, rows, request["limit"])


def run_postgres(request: QueryRequest) -> dict[str, object]:
    """Raises ``QueryFailed`` or ``MemoryError``."""
    import psycopg
    from psycopg.types.string import TextLoader

    limit_self(request["timeout"])
    say("ready")
    sys.stdin.readline()
    limit, timeout = request["limit"], request["timeout"]
    try:
        with (
            psycopg.connect(request["database"], autocommit=True, connect_timeout=5) as con,
            con.transaction(force_rollback=True),
            con.cursor() as cursor,
        ):
            say("opened")
            for kind in ("date", "time", "timetz", "timestamp", "timestamptz", "interval"):
                cursor.adapters.register_loader(kind, TextLoader)  # Python has no infinity, and no year 0
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = {max(1, int(timeout * 1000))}".encode())
            if request["role"]:
                cursor.execute(f"SET LOCAL ROLE {request['role']}".encode())
            # The subquery and the binary protocol each take one statement only, and a SELECT at that.
            wrapped = f"SELECT * FROM ({request['query']}\n) AS q LIMIT {limit + 1}"
            cursor.execute(wrapped.encode(), prepare=True)
            columns = [d.name for d in cursor.description or ()]
            rows = cursor.fetchall()
    except psycopg.errors.QueryCanceled as e:
        raise QueryFailed(f"stopped after {timeout:g} s") from e
    except psycopg.Error as e:
        raise QueryFailed((str(e).strip() or type(e).__name__).splitlines()[0]) from e
    return _result(columns, rows, limit)


def _result(columns: list[str], rows: list[tuple[object, ...]], limit: int) -> dict[str, object]:
    shown = [[public(v) for v in r] for r in rows[:limit]]
    return {"columns": columns, "rows": shown, "truncated": len(rows) > limit}


def main() -> None:
    request: QueryRequest = json.loads(sys.stdin.readline())
    run = run_postgres if "://" in request["database"] else run_duckdb
    try:
        text = json.dumps(run(request))
        if len(text) > RESULT_BYTES:
            raise QueryFailed(f"the result is larger than {RESULT_BYTES // 2**20} MiB: ask for less")
    except MemoryError:
        text = json.dumps({"error": f"it needs more than {QUERY_MEMORY_BYTES // 2**20} MiB: ask for less"})
    except QueryFailed as e:
        text = json.dumps({"error": str(e)})
    say(text)
    os._exit(0)


if __name__ == "__main__":
    main()
