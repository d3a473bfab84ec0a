"""Which tables and functions a user's query may name, by its parse tree and not by its text."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from slipstream_proxy.store.driver import QueryError
from slipstream_proxy.store.schema import VIEW_NAMES

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
