"""Which tables and functions a user's query may name, by its parse tree and not by its text."""

from __future__ import annotations

import json
import threading

from slipstream_proxy.store.driver import QueryError
from slipstream_proxy.store.schema import VIEW_NAMES

SCHEMAS = frozenset({"", "main", "public"})
TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
DENIED_FUNCTIONS = frozenset(
    {"getenv", "current_setting", "getvariable", "query", "query_table", "read_text", "read_blob"}
)
_LOCAL = threading.local()


def parse(query: str) -> list[dict[str, object]]:
    """The statements' trees, by DuckDB's parser (its SQL is PostgreSQL's for all that the views need).

    Raises ``QueryError`` for what is not a SELECT.
    """
    import duckdb

    if not hasattr(_LOCAL, "connection"):
        _LOCAL.connection = duckdb.connect(":memory:", config={"threads": "1", "memory_limit": "64MB"})
    try:
        ((text,),) = _LOCAL.connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    except duckdb.Error as e:
        raise QueryError(str(e).splitlines()[0]) from e
    tree = json.loads(text)
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
    if isinstance(ctes, dict):
        visible |= {str(entry["key"]).lower() for entry in ctes.get("map", [])}
    if isinstance(node.get("cte_name"), str):
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
    if node.get("class") == "FUNCTION" and str(node.get("function_name", "")).lower() in DENIED_FUNCTIONS:
        raise QueryError(f"{node['function_name']}: not in a query here")
    for part in node.values():
        _walk(part, visible)


def _check_table(node: dict[str, object], visible: frozenset[str]) -> None:
    name = str(node.get("table_name", "")).lower()
    schema = str(node.get("schema_name", "")).lower()
    known = name in VIEW_NAMES or (name in visible and not schema)
    if not known or schema not in SCHEMAS or node.get("catalog_name"):
        raise QueryError(f"{name}: no such view; there are {', '.join(VIEW_NAMES)}")
