from __future__ import annotations

import re
from pathlib import Path

import duckdb
import psycopg
import pytest
from tests.support.records import call, new_id, reward
from tests.support.store_writes import all_adapters, put_adapter

from slipstream import __version__
from slipstream.config import Config
from slipstream.errors import StartError
from slipstream.shared.files import DATA_FOLDER_FORMAT
from slipstream_proxy.control.run.store_keeper import open_or_none
from slipstream_proxy.store import refuse_newer
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import StoreError

BYTES = re.compile(r"decode\('([0-9a-f]*)', 'hex'\)")
"""PostgreSQL's spelling; DuckDB's is ``unhex``."""


def test_days():
    assert schema.day_of(0) == "1970-01-01"
    assert schema.day_of(86_399.9) == "1970-01-01"
    assert schema.day_of(86_400) == "1970-01-02"
    assert schema.day_of(-5) == "1970-01-01"
    assert schema.day_of(1e15) == "9999-12-31"
    assert schema.table_of("2026-01-02") == "t_calls_20260102"


def test_every_key_is_a_column():
    for table, key in schema.PRIMARY_KEYS.items():
        assert set(key.split(", ")) <= set(schema.TABLE_COLUMNS[table])


@pytest.mark.parametrize("version", range(min(schema.SCHEMA_MIGRATIONS), schema.SCHEMA_VERSION + 1))
def test_a_store_of_every_version_opens(opened, url, version):
    """Each schema stands in a file of SQL, as its programs made it: this one too, so that it changes with a new number."""
    statements = (Path(__file__).parent / f"schema_v{version}.sql").read_text().splitlines()[1:]
    if url.startswith("duckdb"):
        path = url.removeprefix("duckdb://")
        Path(path).unlink()
        with duckdb.connect(path) as con:
            for statement in statements:
                con.execute(BYTES.sub(r"unhex('\1')", statement))
    else:
        with psycopg.connect(url, autocommit=True) as con:
            for statement in statements:
                con.execute(statement.encode())
    for _ in range(2):
        store = opened()
        with store.db.read() as tx:
            assert tx.all("SELECT value FROM t_meta WHERE name = 'schema'") == [(str(schema.SCHEMA_VERSION),)]
            for table, columns in schema.TABLE_COLUMNS.items():
                assert tx.all(f"SELECT {', '.join(columns)} FROM {table}") is not None
        rows = store.sql("select name, state, reason from adapters order by name", 10, 5.0).rows
        assert rows == [["m@1", "rolled_back", "worse than m"], ["m@2", "live", None]]
        assert [a.name for a in all_adapters(store)] == ["m@1", "m@2"]
        assert store.episodes.get("-", "e1").reward == 0.5
        store.ingest([call("e2", id=new_id("z")), reward("e2", 0.25, id=new_id("y"))], {})
        assert store.episodes.get("-", "e2").reward == 0.25
        put_adapter(store, all_adapters(store)[0])
        store.close()


def test_migrations_run_in_order_and_a_newer_schema_is_refused(opened, monkeypatch):
    store = opened()
    store.close()
    now = schema.SCHEMA_VERSION
    monkeypatch.setattr(schema, "SCHEMA_VERSION", now + 2)
    done = []
    monkeypatch.setitem(
        schema.SCHEMA_MIGRATIONS, now, lambda tx: done.append(tx.run("ALTER TABLE t_cache ADD COLUMN extra TEXT"))
    )
    monkeypatch.setitem(schema.SCHEMA_MIGRATIONS, now + 1, lambda tx: done.append(2))
    again = opened()
    with again.db.read() as tx:
        assert tx.all("SELECT value FROM t_meta WHERE name = 'schema'") == [(str(now + 2),)]
        assert tx.all("SELECT extra FROM t_cache") == []
    assert len(done) == 2
    again.close()
    monkeypatch.setattr(schema, "SCHEMA_VERSION", now + 1)
    with pytest.raises(StoreError, match=rf"slipstream {__version__} wrote, .* install {__version__} or newer"):
        opened()


def test_a_folder_s_format_rises_with_the_schema():
    """What refuses a newer folder is asked before the store is."""
    assert DATA_FOLDER_FORMAT == schema.SCHEMA_VERSION


def test_an_older_program_does_not_start_on_a_newer_store(opened, url, monkeypatch, tmp_path):
    opened().close()
    newer = schema.SCHEMA_VERSION
    monkeypatch.setattr(schema, "SCHEMA_VERSION", newer - 1)
    config = Config.model_validate({"data_dir": str(tmp_path / "data"), "store": {"url": url}})
    config.root.mkdir()
    with pytest.raises(StartError, match=rf"version {newer}, .* install {__version__} or newer"):
        open_or_none(config)
    if url.startswith("postgresql"):
        with pytest.raises(StartError, match=f"install {__version__} or newer"):
            refuse_newer(url)
    monkeypatch.undo()
    refuse_newer(url)


def test_migrations_have_no_gap():
    oldest = min(schema.SCHEMA_MIGRATIONS)
    assert sorted(schema.SCHEMA_MIGRATIONS) == list(range(oldest, schema.SCHEMA_VERSION))


def test_a_schema_that_no_release_wrote_is_refused(opened):
    store = opened()
    with store.db.write() as tx:
        tx.run("UPDATE t_meta SET value = '5' WHERE name = 'schema'")
    store.close()
    with pytest.raises(StoreError, match=r"version 5, which no release wrote.*let data_dir and store\.url name new"):
        opened()
