"""Tenants' stores in one PostgreSQL database."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.postgres import fresh_schema, postgres, postgres_programs  # noqa: F401 - a fixture
from tests.support.records import rules

from slipstream.settings import Config
from slipstream.tenants import schema_of, tenant_config
from slipstream_proxy.store import open_store
from slipstream_proxy.store.backends.postgres import drop_schema
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.driver import QueryError


def test_each_has_a_schema_of_its_own_and_no_query_leaves_it(request: pytest.FixtureRequest) -> None:
    config = Config.model_validate({"store": {"url": request.getfixturevalue("postgres")}})
    stores = {name: open_store(tenant_config(config, name).store_url, rules()) for name in ("ours", "the-irs")}
    try:
        for store in stores.values():
            assert store.db.sql("SELECT count(*) FROM calls", 5, 5.0).rows == [[0]]
        with pytest.raises(QueryError):
            stores["ours"].db.sql("SELECT count(*) FROM slipstream_the_irs.calls", 5, 5.0)
        with psycopg.connect(config.store_url, autocommit=True) as con:
            con.execute("SET ROLE slipstream_reader_slipstream_ours")
            con.execute("SELECT count(*) FROM slipstream_ours.calls")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                con.execute("SELECT count(*) FROM slipstream_the_irs.calls")
        # a writer of one waits for no writer of another
        with stores["ours"].db.write() as one:
            one.run("UPDATE t_meta SET value = value")
            with stores["the-irs"].db.write() as two:
                assert two.run("UPDATE t_meta SET value = value")
    finally:
        for store in stores.values():
            store.close()
        for name in stores:
            assert drop_schema(tenant_config(config, name).store_url, schema_of(name)) is None
        with psycopg.connect(config.store_url, autocommit=True) as con:
            gone = ["slipstream_ours", "slipstream_the_irs"]
            assert con.execute("SELECT 1 FROM pg_namespace WHERE nspname = ANY(%s)", (gone,)).fetchall() == []
            roles = [f"slipstream_reader_{name}" for name in gone]
            assert con.execute("SELECT 1 FROM pg_roles WHERE rolname = ANY(%s)", (roles,)).fetchall() == []
    assert "refused" in str(drop_schema("postgresql://localhost:1/x", "slipstream_ours"))


def test_a_dump_has_its_own_schema_alone(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    config = Config.model_validate({"store": {"url": request.getfixturevalue("postgres")}})
    schemas = {"ours": "slipstream_ours", "the-irs": "slipstream_the_irs", "": "public"}
    stores = {name: open_store(tenant_config(config, name).store_url, rules()) for name in schemas}
    try:
        for name, store in stores.items():
            with store.db.write() as tx:
                tx.run("INSERT INTO t_meta VALUES (?, ?)", ("secret", f"of-{name or 'the operator'}"))
        dumps = {name: dumped(store, tmp_path / (name or "operator")) for name, store in stores.items()}
        dumps["some"] = dumped(stores[""], tmp_path / "some", but=["slipstream_ours"])
        told = {name: {n for n in schemas if f"of-{n or 'the operator'}" in text} for name, text in dumps.items()}
        assert told == {"ours": {"ours"}, "the-irs": {"the-irs"}, "": set(schemas), "some": {"the-irs", ""}}
    finally:
        for store in stores.values():
            store.close()
        with psycopg.connect(config.store_url, autocommit=True) as con:
            con.execute("DROP SCHEMA slipstream_ours CASCADE")
            con.execute("DROP SCHEMA slipstream_the_irs CASCADE")
            con.execute("DELETE FROM t_meta WHERE name = 'secret'")


def dumped(store: Store, folder: Path, but: Collection[str] = ()) -> str:
    """All that the dump restores, as SQL."""
    folder.mkdir()
    argv = [str(postgres_programs() / "pg_restore"), "-f", "-", str(store.db.copy_to(folder, but=but))]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_a_dump_s_command_line_has_no_password(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("postgres").replace(":///", "://postgres:of-the-database@/")
    store, seen = open_store(url, rules()), []
    run = subprocess.run

    def spy(argv: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        seen.append((" ".join(argv), more["env"]["PGPASSWORD"]))
        return run(argv, **more)

    try:
        monkeypatch.setattr("slipstream_proxy.store.backends.postgres.subprocess.run", spy)
        assert store.db.copy_to(tmp_path).stat().st_size > 0
    finally:
        store.close()
    ((line, secret),) = seen
    assert secret == "of-the-database" and secret not in line and "dbname=postgres" in line
