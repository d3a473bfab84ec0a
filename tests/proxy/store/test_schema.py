from __future__ import annotations

import pytest

from slipstream_proxy.store import schema
from slipstream_proxy.store.driver import StoreError


def test_days():
    assert schema.day_of(0) == "1970-01-01"
    assert schema.day_of(86_399.9) == "1970-01-01"
    assert schema.day_of(86_400) == "1970-01-02"
    assert schema.day_of(-5) == "1970-01-01"
    assert schema.day_of(1e15) == "9999-12-31"
    assert schema.table_of("2026-01-02") == "t_calls_20260102"


def test_every_key_is_a_column():
    for table, key in schema.PRIMARY.items():
        assert set(key.split(", ")) <= set(schema.TABLES[table])


def test_an_older_schema_is_migrated(opened, monkeypatch):
    store = opened()
    store.close()
    monkeypatch.setattr(schema, "VERSION", 3)
    done = []
    monkeypatch.setitem(
        schema.MIGRATIONS, 1, lambda tx: done.append(tx.run("ALTER TABLE t_cache ADD COLUMN extra TEXT"))
    )
    monkeypatch.setitem(schema.MIGRATIONS, 2, lambda tx: done.append(2))
    again = opened()
    with again.db.read() as tx:
        assert tx.all("SELECT value FROM t_meta WHERE name = 'schema'") == [("3",)]
        assert tx.all("SELECT extra FROM t_cache") == []
    assert len(done) == 2
    again.close()
    monkeypatch.setattr(schema, "VERSION", 2)
    with pytest.raises(StoreError, match="newer"):
        opened()


def test_all_migrations_are_there():
    assert sorted(schema.MIGRATIONS) == list(range(1, schema.VERSION))
