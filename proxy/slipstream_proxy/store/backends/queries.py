"""A user's query: what it may name (by its parse tree and not by its text), and the process that runs it.

The process can be killed: time and memory are bounded from outside. It is this module (``python -m
slipstream_proxy.store.backends.queries``), and says ``ready`` when it has started and ``opened`` when it reads the
database.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import re
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict
from uuid import UUID

from slipstream.contract import SqlResult
from slipstream_proxy.process import cores
from slipstream_proxy.store.tables.driver import QueryError
from slipstream_proxy.store.tables.schema import TABLES, VIEW_NAMES

if TYPE_CHECKING:
    import duckdb

SCHEMAS = frozenset({"", "main", "public"})
TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
DENIED_FUNCTIONS = frozenset(
    {"getenv", "current_setting", "getvariable", "query", "query_table", "read_text", "read_blob"}
)
WINDOW_FUNCTIONS = frozenset(
    {"row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"}
    | {"first_value", "last_value", "nth_value", "fill"}
)
POSTGRES_FUNCTIONS = re.compile(
    r"(?:jsonb?|array|regexp|to|make|percentile|justify|date|octet|char|bit|bool|regr|width)_\w+|age|btrim|cardinality|"
    r"clock_timestamp|decode|encode|every|initcap|isfinite|jsonb?|now|num_nonnulls|num_nulls|overlay|quote_\w+|scale|"
    r"statement_timestamp|timeofday|timezone"
)
"""What PostgreSQL has and DuckDB has not. Some of its other functions run a text as SQL (``ts_stat``)."""
_ASKING = threading.Lock()


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(":memory:", config={"threads": "1", "memory_limit": "64MB"})


def _ask(sql: str, values: Sequence[str] = ()) -> list[tuple[object, ...]]:
    """One database for all threads. A thread's own would be ended in each process forked here, and crash it."""
    with _ASKING:
        return _connection().execute(sql, list(values)).fetchall()


@cache
def _functions() -> frozenset[str]:
    """All that answer with a value, in DuckDB."""
    sql = (
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'macro')"
    )
    found = {str(name).lower() for (name,) in _ask(sql)}
    return frozenset((found | WINDOW_FUNCTIONS | TABLE_FUNCTIONS) - DENIED_FUNCTIONS)


def parse(query: str) -> list[dict[str, object]]:
    """The statements' trees, by DuckDB's parser (its SQL is PostgreSQL's for all that the views need).

    Raises ``QueryError`` for what is not a SELECT.
    """
    import duckdb

    try:
        ((text,),) = _ask("SELECT json_serialize_sql(?::VARCHAR)", [query])
    except duckdb.Error as e:
        raise QueryError(str(e).splitlines()[0]) from e
    tree = json.loads(str(text))
    if tree["error"]:
        message = str(tree.get("error_message", "it does not parse")).splitlines()[0]
        raise QueryError("one SELECT statement only" if "Only SELECT" in message else message)
    statements: list[dict[str, object]] = tree["statements"]
    return statements


def check_names(query: str) -> None:
    """Raises ``QueryError`` unless it is one SELECT over the views, its own WITH names and a few functions."""
    statements = parse(query)
    if len(statements) != 1:
        raise QueryError("one SELECT statement only")
    _walk(statements[0], frozenset())


def _walk(node: object, visible: frozenset[str]) -> None:
    """``visible``: names that WITH defines here."""
    if isinstance(node, list):
        for part in node:
            _walk(part, visible)
        return
    if not isinstance(node, dict):
        return
    ctes = node.get("cte_map")
    for entry in ctes.get("map", []) if isinstance(ctes, dict) else ():
        # a name stands for a table of the database in its own definition, and before it
        _walk(entry["value"], visible)
        visible |= {str(entry["key"]).lower()}
    if node.get("type") == "RECURSIVE_CTE_NODE":
        _walk(node["left"], visible)
        visible |= {str(node["cte_name"]).lower()}
    match node.get("type"):
        case "BASE_TABLE":
            _check_table(node, visible)
        case "SHOW_REF" if node.get("query") is None:
            raise QueryError(f"one SELECT over the views {', '.join(VIEW_NAMES)}")
        case "TABLE_FUNCTION":
            function = node.get("function")
            name = str(function.get("function_name", "") if isinstance(function, dict) else "").lower()
            if name not in TABLE_FUNCTIONS:
                raise QueryError(f"{name}: not in a query here; there are the views {', '.join(VIEW_NAMES)}")
    if node.get("class") in ("FUNCTION", "WINDOW"):
        _check_function(str(node.get("function_name", "")).lower())
    for name, part in node.items():
        if name != "cte_map":
            _walk(part, visible)


def _check_function(name: str) -> None:
    is_operator = not re.search(r"\w", name)
    if not (
        is_operator or name in _functions() or (POSTGRES_FUNCTIONS.fullmatch(name) and name not in DENIED_FUNCTIONS)
    ):
        raise QueryError(f"{name}: not in a query here")


def _check_table(node: dict[str, object], visible: frozenset[str]) -> None:
    name = str(node.get("table_name", "")).lower()
    schema = str(node.get("schema_name", "")).lower()
    known = name in VIEW_NAMES or (name in visible and not schema)
    if not known or schema not in SCHEMAS or node.get("catalog_name"):
        raise QueryError(f"{name}: no such view; there are {', '.join(VIEW_NAMES)}")


HEAD = re.compile(r"^(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(select|with|values|from)\b", re.IGNORECASE | re.DOTALL)

TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
INTERNAL = re.compile(rf"\b(?:{'|'.join([*TABLES, 't_calls_'])})\w*", re.IGNORECASE)


def bare(text: str) -> str:
    """The query without its texts and comments, so that a word in one of them is no reason to refuse it.

    Where escapes or dollar quotes could hide where a text ends, nothing is taken out.
    """
    if "\\" in text or "$" in text:
        return text
    return TOKENS.sub(lambda m: m.group(0) if m.group(0).startswith('"') else " ", text)


def check(query: str) -> str:
    """The query without its last semicolon.

    Raises ``QueryError`` for what does not begin as a SELECT does, or names our own tables.
    """
    text = query.strip().rstrip(";").strip()
    if "\0" in text or not HEAD.match(text):
        raise QueryError("one SELECT statement only")
    if found := INTERNAL.search(bare(text)):
        raise QueryError(f"{found.group(0)}: no such view; there are {', '.join(VIEW_NAMES)}")
    check_names(text)
    return text


def public(value: Any) -> Any:
    """A database's value as JSON takes it."""
    match value:
        case None | bool() | int() | float() | str():
            if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
                return None
            return value
        case Decimal():
            return float(value)
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


MEMORY = 2**30
"""Bytes that a query may need, beside what the process has at its start."""
RESULT_BYTES = 64 * 2**20
START = 10.0
"""Seconds that the process may take to start and to open the database."""
FRUGAL = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Address space is what is bounded, and by default arenas and numpy's threads take it by the number of cores."""
SPARE = 0.5
"""Seconds beyond the query's time-out after which its process is killed."""


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


class BoundedQuery:
    """``with BoundedQuery(request) as running:`` the process ends with the block, whatever it does."""

    def __init__(self, request: QueryRequest) -> None:
        self.timeout = request["timeout"]
        self._request = json.dumps(request).encode() + b"\n"
        self._rest = b""

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-m", "slipstream_proxy.store.backends.queries"]
        with cores.anywhere():
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, **FRUGAL}
            )
        self._say(self._request)
        self._expect(b"ready", START)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """The process is gone when this returns."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def open(self) -> None:
        """Returns when it reads what is there now. Raises ``QueryError``."""
        self._say(b"open\n")
        self._expect(b"opened", START)

    def result(self) -> SqlResult:
        """Raises ``QueryError``: it failed, it took too long, or it asked for too much memory."""
        answer = json.loads(self._line(self.timeout + SPARE))
        if "error" in answer:
            raise QueryError(answer["error"])
        return SqlResult(**answer)

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)

    def _expect(self, word: bytes, seconds: float) -> None:
        line = self._line(seconds)
        if line != word:
            raise QueryError(str(json.loads(line).get("error", "the query's process failed")))

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        until, pipe, parts = time.monotonic() + seconds, self._process.stdout.fileno(), [self._rest]
        while b"\n" not in parts[-1]:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise QueryError(f"stopped after {self.timeout:g} s")
            part = os.read(pipe, 2**20)
            if not part:
                raise QueryError(f"it needs more than {MEMORY // 2**20} MiB: ask for less")
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


THREADS = 2
"""DuckDB's, whatever the machine has: each takes address space, and 32 of them took all that a query may have."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def limit_self(timeout: float) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE + MEMORY
    seconds = math.ceil(timeout) + 2
    for limit, value in ((resource.RLIMIT_AS, size), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (value, value))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_duckdb(request: QueryRequest) -> SqlResult:
    """Raises ``QueryError`` or ``MemoryError``."""
    import duckdb

    limit_self(request["timeout"])
    say("ready")
    sys.stdin.readline()
    try:
        con = duckdb.connect(request["database"], read_only=True, config={**request["config"], "threads": str(THREADS)})
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        con.execute("BEGIN TRANSACTION READ ONLY")
        con.execute("SELECT count(*) FROM duckdb_tables()").fetchall()
    except duckdb.Error as e:
        raise QueryError(f"the store cannot be read just now: {str(e).splitlines()[0]}") from e
    say("opened")
    timer = threading.Timer(request["timeout"], con.interrupt)
    timer.daemon = True
    timer.start()
    try:
        done = con.execute(request["query"])
        columns = [str(d[0]) for d in done.description or ()]
        rows = done.fetchmany(request["limit"] + 1)
    except duckdb.InterruptException as e:
        raise QueryError(f"stopped after {request['timeout']:g} s") from e
    except duckdb.OutOfMemoryException as e:
        raise MemoryError from e
    except duckdb.Error as e:
        raise QueryError(str(e).splitlines()[0]) from e
    return _result(columns, rows, request["limit"])


def run_postgres(request: QueryRequest) -> SqlResult:
    """Raises ``QueryError`` or ``MemoryError``."""
    import psycopg

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
        raise QueryError(f"stopped after {timeout:g} s") from e
    except psycopg.Error as e:
        raise QueryError((str(e).strip() or type(e).__name__).splitlines()[0]) from e
    return _result(columns, rows, limit)


def _result(columns: list[str], rows: list[tuple[object, ...]], limit: int) -> SqlResult:
    shown = [[public(v) for v in r] for r in rows[:limit]]
    return SqlResult(columns=columns, rows=shown, truncated=len(rows) > limit)


def main() -> None:
    request: QueryRequest = json.loads(sys.stdin.readline())
    run = run_postgres if "://" in request["database"] else run_duckdb
    try:
        text = json.dumps(run(request).model_dump(mode="json"))
        if len(text) > RESULT_BYTES:
            raise QueryError(f"the result is larger than {RESULT_BYTES // 2**20} MiB: ask for less")
    except MemoryError:
        text = json.dumps({"error": f"it needs more than {MEMORY // 2**20} MiB: ask for less"})
    except QueryError as e:
        text = json.dumps({"error": str(e)})
    say(text)
    os._exit(0)


if __name__ == "__main__":
    main()
