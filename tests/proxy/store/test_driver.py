"""Conformance: what both databases' drivers promise."""

from __future__ import annotations

import duckdb
import psycopg
import pytest

from slipstream_proxy.store.tables.driver import IN, QueryError, StoreError, is_store_fault


def rows(tx):
    return tx.all("SELECT name, value FROM t_meta WHERE name LIKE 'x%' ORDER BY name")


def test_a_transaction_is_whole_or_nothing(store):
    with store.db.write() as tx:
        tx.insert("t_meta", [("x1", "a"), ("x2", "b")])
    with pytest.raises(ZeroDivisionError), store.db.write() as tx:
        tx.insert("t_meta", [("x3", "c")])
        assert tx.run("DELETE FROM t_meta WHERE name = 'x1'") == 1
        raise ZeroDivisionError
    with store.db.read() as tx:
        assert rows(tx) == [("x1", "a"), ("x2", "b")]


def test_a_change_says_how_many_rows_it_changed(store):
    with store.db.write() as tx:
        tx.insert("t_meta", [(f"x{i}", "a") for i in range(3)])
        assert tx.run(f"UPDATE t_meta SET value = 'b' WHERE name {IN}", (["x0", "x2", "y"],)) == 2
        assert tx.run("DELETE FROM t_meta WHERE name = ?", ("none",)) == 0


def test_a_bulk_update_goes_by_its_keys(store):
    with store.db.write() as tx:
        tx.insert("t_meta", [("x1", "a"), ("x2", "b"), ("x3", "c")])
        tx.update("t_meta", ("name",), ("value",), [("x1", "A"), ("x3", "C"), ("x9", "Z")])
        tx.update("t_meta", ("name",), ("value",), [])
        assert rows(tx) == [("x1", "A"), ("x2", "b"), ("x3", "C")]


def test_a_reader_sees_one_state(store):
    """One snapshot for all queries of a block, whatever is written meanwhile in DuckDB; committed work in PostgreSQL."""
    if store.db.shared:
        pytest.skip("PostgreSQL's readers see what is committed")
    import threading

    with store.db.read() as tx:
        assert rows(tx) == []

        def write():
            with store.db.write() as other:
                other.insert("t_meta", [("x1", "a")])

        thread = threading.Thread(target=write)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        assert rows(tx) == []
    with store.db.read() as tx:
        assert rows(tx) == [("x1", "a")]


def test_numbers_ascend_and_are_given_once(store):
    with store.db.write() as tx:
        first = store.db.next_seq(tx, 3)
        second = store.db.next_seq(tx, 1)
    assert second >= first + 3


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (StoreError("closed"), True),
        (psycopg.OperationalError("server closed the connection"), True),
        (duckdb.FatalException("disk full"), True),
        (psycopg.errors.SyntaxError("near x"), False),
        (duckdb.CatalogException("no such table"), False),
        (QueryError("refused"), False),
        (ValueError("cursor"), False),
    ],
)
def test_a_failing_database_is_told_from_a_wrong_question(error, fault):
    assert is_store_fault(error) is fault
