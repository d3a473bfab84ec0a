from __future__ import annotations

import os
import subprocess
import sys

import duckdb
import pytest

from slipstream_proxy.store.backends.duckfile import LentLock, open_file, open_or_set_aside, restore_deleted
from slipstream_proxy.store.tables.driver import StoreError


def test_a_broken_file_is_set_aside_and_a_good_one_is_not(tmp_path):
    path = tmp_path / "it's.duckdb"
    con, broken = open_or_set_aside(path, {})
    con.execute("CREATE TABLE t (a TEXT)")
    con.close()
    assert not broken
    con, broken = open_or_set_aside(path, {})
    assert not broken and con.execute("SELECT * FROM t").fetchall() == []
    con.close()
    path.write_bytes(b"no database" * 1000)
    con, broken = open_or_set_aside(path, {})
    assert broken and len(list(tmp_path.glob("*.broken-*"))) == 1
    con.close()


def test_an_open_file_that_was_deleted_is_copied_back(tmp_path):
    path = tmp_path / "a.duckdb"
    con = open_file(path, {})
    con.execute("CREATE TABLE t AS SELECT 7 AS a")
    con.execute("CHECKPOINT")
    os.unlink(path)
    restore_deleted(path)
    con.close()
    with duckdb.connect(str(path)) as again:
        assert again.execute("SELECT a FROM t").fetchall() == [(7,)]
    with pytest.raises(StoreError, match="no longer open"):
        os.unlink(path)
        restore_deleted(path)


def test_while_its_lock_is_lent_another_process_reads_an_open_file(tmp_path):
    path = tmp_path / "a.duckdb"
    con = open_file(path, {})
    con.execute("CREATE TABLE t AS SELECT 7 AS a")
    con.execute("CHECKPOINT")
    read = f"import duckdb; print(duckdb.connect({str(path)!r}, read_only=True).execute('FROM t').fetchall())"
    lock = LentLock(path)
    for may in (False, True, False):
        lock.lend() if may else lock.take_back()
        done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == ((0, "[(7,)]") if may else (1, "")), done.stderr
    con.close()
    lock.close()
