"""A user's query gets a value of every type that its database has, on either store."""

from __future__ import annotations

import json
import sys
from datetime import datetime

import duckdb
import psycopg
import pytest
from tests.support.records import NOW, call

from slipstream_proxy.process.query import as_texts, public
from slipstream_proxy.store.tables.driver import QueryError

BOTH = [
    ("to_timestamp(0) - to_timestamp(0) is null", False),
    ("date '2026-01-01'", "2026-01-01"),
    ("time '12:00:00'", "12:00:00"),
    ("timestamp '2026-01-01 12:00:00.5'", "2026-01-01 12:00:00.5"),
    ("timestamp 'infinity'", "infinity"),
    ("date '-infinity'", "-infinity"),
    ("1.5::numeric(6, 2)", 1.5),
    ("'nan'::double precision", None),
    ("true", True),
    ("null", None),
    ("'x'::text", "x"),
    ("9223372036854775807::bigint", 9223372036854775807),
    ("'00000000-0000-0000-0000-000000000001'::uuid", "00000000-0000-0000-0000-000000000001"),
]
DUCKDB_ONLY = {
    "TIMESTAMP WITH TIME ZONE": "timestamptz 'infinity'", "TIME WITH TIME ZONE": "timetz '12:00:00+02'",
    "TIMESTAMP_NS": "timestamp_ns '2026-01-01'", "TIMESTAMP_MS": "timestamp_ms '2026-01-01'",
    "TIMESTAMP_S": "timestamp_s '2026-01-01'", "INTERVAL": "interval '1 month 2 days'", "HUGEINT": "1::hugeint",
    "UHUGEINT": "1::uhugeint", "BIGNUM": "123456789012345678901234567890::bignum", "BIT": "'101'::bit",
    "BLOB": "'ab'::blob", "VARIANT": "now()::variant", "FLOAT": "'inf'::float", "TINYINT": "1::tinyint",
}  # fmt: skip
NESTED = (
    "[{0}]", "{{'a': {0}, 'DATE': {0}, 'time zone': 1}}", "map {{'k': {0}}}", "union_value(u := {0})",
    "array_value({0}, {0})", "[map {{1: {{'date': [{0}]}}}}]",
)  # fmt: skip


@pytest.mark.parametrize(("expression", "value"), BOTH)
def test_types_of_both_stores(store, expression, value):
    assert store.sql(f"select {expression} as x", 1, 30.0).rows == [[value]]


@pytest.mark.parametrize(
    "expression", ["now()", "to_timestamp(0)", "date_trunc('hour', now())", "now() - interval '1 day'"]
)
def test_moments_of_both_stores(store, expression):
    store.ingest([call("a", at=NOW), call("b", at=NOW)], {})
    (row,) = store.sql(f"select {expression}, [{expression}][1], 1 where 1 = 1".replace("[", "(array[", 1).replace("]", "])", 1), 5, 30.0).rows  # fmt: skip
    assert row[0] == row[1] and datetime.fromisoformat(row[0]).tzinfo is not None


def test_calls_by_the_hour(store):
    store.ingest([call("a", at=NOW), call("b", at=NOW)], {})
    told = store.sql("select date_trunc('hour', to_timestamp(ts)) as h, count(*) as n from calls group by 1", 5, 30.0)
    assert (told.columns, told.rows[0][1]) == (["h", "n"], 2)
    assert datetime.fromisoformat(told.rows[0][0]).timestamp() == NOW // 3600 * 3600
    assert (
        len(store.sql("select to_timestamp(ts), ts as a, ts as a from calls order by 1 limit 3 -- all", 5, 30.0).rows)
        == 2
    )


def test_every_type_of_duckdb_alone_and_inside_of_others(monkeypatch):
    """Those that its own catalogue lists. No package more is needed to fetch one."""
    monkeypatch.setitem(sys.modules, "pytz", None)
    con = duckdb.connect()
    listed = {name for (name,) in con.execute("SELECT DISTINCT logical_type FROM duckdb_types()").fetchall()}
    for kind in sorted(
        listed - {"STRUCT", "MAP", "LIST", "UNION", "ENUM", "NULL", "TYPE", "ARRAY", "GEOMETRY", "TUPLE"}
    ):
        value = DUCKDB_ONLY.get(kind, f"NULL::{kind}")
        for shape in ("{0}", *NESTED):
            columns, query = as_texts(con, f"SELECT {shape.format(value)} AS x")
            (row,) = con.execute(query).fetchmany(2)
            assert columns == ["x"]
            json.dumps(public(row), allow_nan=False)


@pytest.mark.parametrize("expression", ["'NaN'::numeric", "'Infinity'::numeric", "now()::timestamptz", "interval '1 month'", "tstzrange(now(), null)", "array['infinity'::date]", "row(now(), 1)", "'(1,2)'::point", "'\\x61'::bytea", "'1 12:00'::interval", "timetz '12:00:00+02'", "'{\"a\": [1]}'::jsonb", "'10.0.0.1'::inet"])  # fmt: skip
def test_types_of_postgres(store, expression):
    if not store.db.shared:
        pytest.skip("DuckDB has no such type")
    try:
        (row,) = store.sql(f"select {expression} as x", 1, 30.0).rows
    except QueryError as e:
        assert "not in a query here" in str(e) and not isinstance(e.__cause__, psycopg.Error)
    else:
        json.dumps(row, allow_nan=False)
