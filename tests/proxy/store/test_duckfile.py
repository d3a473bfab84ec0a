from __future__ import annotations

import duckdb
import pytest

from slipstream_proxy.store.duckfile import write_anew


def test_what_was_deleted_is_nowhere_in_the_file(tmp_path):
    path = tmp_path / "it's.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE t (a TEXT); CREATE VIEW v AS SELECT a FROM t")
        con.execute("INSERT INTO t SELECT 'SECRET' || i FROM range(5000) r(i)")
        con.execute("CHECKPOINT")
        con.execute("DELETE FROM t WHERE a <> 'SECRET7'")
    write_anew(path, {})
    data = path.read_bytes()
    assert b"SECRET4999" not in data and not list(tmp_path.glob("*.rewrite*"))
    with duckdb.connect(str(path)) as con:
        assert con.execute("SELECT * FROM v").fetchall() == [("SECRET7",)]


def test_a_file_that_is_none_stays_as_it_is(tmp_path):
    path = tmp_path / "a.duckdb"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(duckdb.Error):
        write_anew(path, {})
    assert path.read_bytes().startswith(b"no database")
