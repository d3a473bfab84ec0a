"""A user's query: what it may name (by its parse tree and not by its text), and the process that runs it.

The process can be killed: time and memory are bounded from outside. It is ``process/query.py``, and says ``ready`` when
it has started and ``opened`` when it reads the database.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Self

from slipstream.contract import SqlResult
from slipstream_proxy.process import cores
from slipstream_proxy.process import query as program
from slipstream_proxy.store.tables.driver import QueryError
from slipstream_proxy.store.tables.schema import (
    ARCHIVED_COLUMNS,
    EXTENSION_PREFIX,
    TABLE_COLUMNS,
    VIEW_NAMES,
    archived_views_sql,
)
from slipstream_proxy.store.write.archive import ARCHIVE_SCHEMA

if TYPE_CHECKING:
    import duckdb

READABLE_SCHEMAS = frozenset({"", "main", "public"})
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
    if not known or schema not in READABLE_SCHEMAS or node.get("catalog_name"):
        raise QueryError(f"{name}: no such view; there are {', '.join(VIEW_NAMES)}")


SELECT_HEAD_PATTERN = re.compile(
    r"^(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*(select|with|values|from)\b", re.IGNORECASE | re.DOTALL
)

SQL_TOKEN_PATTERN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
INTERNAL_TABLE_PATTERN = re.compile(
    rf"\b(?:{'|'.join([*TABLE_COLUMNS, 't_calls_', EXTENSION_PREFIX])})\w*", re.IGNORECASE
)


def bare(text: str) -> str:
    """The query without its texts and comments, so that a word in one of them is no reason to refuse it.

    Where escapes or dollar quotes could hide where a text ends, nothing is taken out.
    """
    if "\\" in text or "$" in text:
        return text
    return SQL_TOKEN_PATTERN.sub(lambda m: m.group(0) if m.group(0).startswith('"') else " ", text)


def check(query: str) -> str:
    """The query without its last semicolon.

    Raises ``QueryError`` for what does not begin as a SELECT does, or names our own tables.
    """
    text = query.strip().rstrip(";").strip()
    if "\0" in text or not SELECT_HEAD_PATTERN.match(text):
        raise QueryError("one SELECT statement only")
    if found := INTERNAL_TABLE_PATTERN.search(bare(text)):
        raise QueryError(f"{found.group(0)}: no such view; there are {', '.join(VIEW_NAMES)}")
    check_names(text)
    return text


QUERY_START_TIMEOUT_S = 10.0
"""Seconds that the process may take to start and to open the database."""
FRUGAL_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Address space is what is bounded, and by default arenas and numpy's threads take it by the number of cores."""
KILL_GRACE_S = 0.5
"""Seconds beyond the query's time-out after which its process is killed."""


ARCHIVED_VIEW_PATTERN = re.compile(r"\b(?:calls|messages)\b", re.IGNORECASE)
"""Views that have archived days, too."""


def archived_days(place: str) -> program.ArchiveRequest:
    """What the process needs to know of ``store.archive``."""
    kinds = {name: str(ARCHIVE_SCHEMA.field(name).type) for name in ARCHIVED_COLUMNS}
    return {"place": place, "columns": kinds, "views": archived_views_sql()}


class BoundedQuery:
    """``with BoundedQuery(request) as running:`` the process ends with the block, whatever it does."""

    def __init__(self, request: program.QueryRequest) -> None:
        self.timeout = request["timeout"]
        self._request = json.dumps(request).encode() + b"\n"
        self._rest = b""

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", program.__file__]
        with cores.anywhere():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **FRUGAL_ENVIRONMENT},
            )
        self._say(self._request)
        self._expect(b"ready", QUERY_START_TIMEOUT_S)
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
        self._expect(b"opened", QUERY_START_TIMEOUT_S)

    def result(self) -> SqlResult:
        """Raises ``QueryError``: it failed, it took too long, or it asked for too much memory."""
        answer = json.loads(self._line(self.timeout + KILL_GRACE_S))
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
                raise QueryError(f"it needs more than {program.QUERY_MEMORY_BYTES // 2**20} MiB: ask for less")
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line
