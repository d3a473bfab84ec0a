"""A snapshot is read back before the spool may go."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, at, call, rules

from slipstream_proxy.store.backends.duckdb import DuckStore
from slipstream_proxy.store.tables.driver import StoreError


@pytest.fixture
def duck(tmp_path):
    store = DuckStore(tmp_path / "a.duckdb", rules())
    yield store
    store.close()


def test_it_brings_everything_into_the_file_itself(duck):
    duck.ingest([call("a")], at(0, 10))
    duck.snapshot()
    wal = duck.db.path.with_name("a.duckdb.wal")
    assert not wal.exists() or wal.stat().st_size == 0


def test_rows_that_are_not_there_are_named(duck, monkeypatch):
    """A file that lost rows between the writing and the reading back keeps the spool."""
    duck.ingest([call("a"), call("b")], at(0, 10))
    taken = duck.db.settle

    def lose():
        taken()
        day = duck.archive.days()[0].replace("-", "")
        with duck.db.write() as tx:
            table = next(t for (t,) in tx.all("SELECT table_name FROM duckdb_tables()") if day in t)
            tx.run(f"DELETE FROM {table} WHERE eid = '-/a'")

    monkeypatch.setattr(duck.db, "settle", lose)
    with pytest.raises(StoreError, match=r"has 1 rows of \d+ bytes, \(2, \d+\) were ingested"):
        duck.snapshot()


def test_a_position_that_went_back_is_named(duck, monkeypatch):
    duck.ingest([call("a")], at(0, 10))
    taken = duck.db.settle

    def lose():
        taken()
        with duck.db.write() as tx:
            tx.run("UPDATE t_positions SET pos = 3")

    monkeypatch.setattr(duck.db, "settle", lose)
    with pytest.raises(StoreError, match="holds positions"):
        duck.snapshot()


def test_the_next_one_reads_only_what_is_new(duck, monkeypatch):
    duck.ingest([call("old", at=NOW)], at(0, 10))
    duck.snapshot()
    read = []
    sums = duck._snapshots._sums
    monkeypatch.setattr(duck._snapshots, "_sums", lambda tx, since: read.append(since) or sums(tx, since))
    duck.ingest([call("new", at=NOW + 3600)], at(0, 20))
    duck.snapshot()
    assert all(NOW - 3600 < since <= NOW for since in read)
    assert read
