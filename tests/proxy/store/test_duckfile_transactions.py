from __future__ import annotations

import duckdb
import pytest

from slipstream_proxy.store.backends.duckfile import ARROW_TYPES, DuckTx, spread
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import IN


@pytest.fixture
def tx():
    con = duckdb.connect(":memory:")
    for statement in schema.create_sql("t_pins", keyed=False):
        con.execute(statement)
    yield DuckTx(con)
    con.close()


def test_rows_in_bulk(tx):
    tx.insert("t_pins", [("a", "m", "m@1", "live", 1.0, True, "x"), ("b", None, "m@1", "live", 2.0, False, None)])
    tx.insert("t_pins", [])
    tx.update("t_pins", ("eid",), ("adapter", "active"), [("b", "m@2", True), ("c", "m@3", True)])
    tx.update("t_pins", ("eid",), ("adapter",), [])
    assert tx.all("SELECT * FROM t_pins ORDER BY eid") == [
        ("a", "m", "m@1", "live", 1.0, True, "x"),
        ("b", None, "m@2", "live", 2.0, True, None),
    ]
    assert tx.run("UPDATE t_pins SET ts = 0 WHERE active") == 2
    assert tx.run("DELETE FROM t_pins WHERE eid = ?", ("z",)) == 0


def test_it_knows_whether_something_was_written(tx):
    assert tx.all("SELECT * FROM t_pins") == [] and tx.run("DELETE FROM t_pins") == 0
    tx.insert("t_pins", [])
    tx.update("t_pins", ("eid",), ("adapter",), [])
    assert not tx.changes
    tx.insert("t_pins", [("a", "m", "m@1", "live", 1.0, True, "x")])
    assert tx.changes


def test_every_kind_of_column_is_known():
    assert {kind for columns in schema.TABLE_COLUMNS.values() for kind in columns.values()} <= set(ARROW_TYPES)


def test_short_lists_are_parameters_of_their_own():
    few, many = ["a", "b"], [str(n) for n in range(600)]
    sql = f"SELECT ? FROM t WHERE x {IN} AND y = ? AND z {IN} AND w = ?"
    assert spread(sql, (1, few, 2, many, 3)) == (
        f"SELECT ? FROM t WHERE x IN (?, ?) AND y = ? AND z {IN} AND w = ?",
        [1, "a", "b", 2, many, 3],
    )
    assert spread("SELECT 1", ()) == ("SELECT 1", ())
    assert spread(f"x {IN}", ([],)) == (f"x {IN}", [[]])
