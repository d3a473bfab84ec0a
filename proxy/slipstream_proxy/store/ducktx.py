"""A DuckDB transaction: rows go in bulk through Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from slipstream_proxy.store import schema
from slipstream_proxy.store.driver import IN, Row

ARROW = {
    "TEXT": pa.string(),
    "FLOAT8": pa.float64(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "BYTEA": pa.binary(),
}


FEW = 512
"""Names that a statement has as parameters of their own: an index finds these, and not what a list holds."""


def spread(sql: str, params: Sequence[object]) -> tuple[str, Sequence[object]]:
    """``IN`` with each short list's items as parameters of their own."""
    head, *rest = sql.split(IN)
    if not rest:
        return sql, params
    at = head.count("?")
    flat: list[object] = list(params[:at])
    for part in rest:
        names = params[at]
        assert isinstance(names, list)
        short = 0 < len(names) <= FEW
        head += (f"IN ({', '.join('?' * len(names))})" if short else IN) + part
        after = at + 1 + part.count("?")
        flat += [*(names if short else [names]), *params[at + 1 : after]]
        at = after
    return head, flat


class DuckTx:
    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self.changes = False
        """Something was written."""

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        rows: list[Row] = self._cursor.execute(*spread(sql, params)).fetchall()
        return rows

    def run(self, sql: str, params: Sequence[Any] = ()) -> int:
        rows = self._cursor.execute(*spread(sql, params)).fetchall()
        self.changes = self.changes or rows != [(0,)]
        return int(rows[0][0]) if rows and isinstance(rows[0][0], int) else 0

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        if rows:
            self.changes = True
            self._stage(list(schema.columns_of(table).items()), rows)
            try:
                self._cursor.execute(f"INSERT INTO {table} SELECT * FROM stage").fetchall()
            finally:
                self._cursor.unregister("stage")

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        if rows:
            self.changes = True
            kinds = schema.columns_of(table)
            self._stage([(c, kinds[c]) for c in (*keys, *columns)], rows)
            sets = ", ".join(f"{c} = stage.{c}" for c in columns)
            same = " AND ".join(f"{table}.{k} = stage.{k}" for k in keys)
            few = [row[0] for row in rows] if len(rows) <= FEW else []
            if few:
                same += f" AND {table}.{keys[0]} IN ({', '.join('?' * len(few))})"
            try:
                self._cursor.execute(f"UPDATE {table} SET {sets} FROM stage WHERE {same}", few).fetchall()
            finally:
                self._cursor.unregister("stage")

    def _stage(self, columns: list[tuple[str, str]], rows: Sequence[Row]) -> None:
        data = zip(*rows, strict=True)
        table = {name: pa.array(values, ARROW[kind]) for (name, kind), values in zip(columns, data, strict=True)}
        self._cursor.register("stage", pa.table(table))
