"""A user's query is bounded from outside: by time, by memory, and it stops nobody else."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from tests.support.records import call

from slipstream_proxy.store.tables.driver import QueryError


@pytest.mark.parametrize(
    "query",
    [
        "select repeat('x', 2000000000)",
        "select length(a || a || a || a) from (select repeat('x', 500000000) as a) as q",
    ],
)
def test_what_needs_too_much_memory_fails_quickly(opened, query):
    store = opened()
    began = time.monotonic()
    with pytest.raises(QueryError, match="it needs more than|memory|size|too|stopped"):
        store.sql(query, 10, 5)
    assert time.monotonic() - began < 15  # most of it is the start of the process; PostgreSQL has its statement_timeout


def test_what_takes_too_long_is_killed(store):
    store.ingest([call(f"e{i}") for i in range(50)], {})
    began = time.monotonic()
    with pytest.raises(QueryError, match="stopped after 0.5 s"):
        store.sql(
            "select count(*) from calls a, calls b, calls c, calls d, calls e, calls f where a.ts + b.ts > f.ts",
            10,
            0.5,
        )
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_queries_beside_writes_snapshots_and_reads(opened):
    store, stop, errors = opened(), threading.Event(), []
    store.ingest([call("first")], {})

    def work(step) -> None:
        n = 0
        while not stop.is_set():
            try:
                step(n)
            except Exception as e:
                errors.append(e)
            n += 1
            time.sleep(0.02)

    steps = (
        lambda n: store.ingest([call(f"w{n}-{k}") for k in range(10)], {}),
        lambda n: store.statistics.counts(time.time()),
        lambda n: store.db.settle(),
        lambda n: n % 10 or (store.db.rewrite([]) if not store.shared else None),  # closes the file, and opens it again
    )
    threads = [threading.Thread(target=work, args=(s,)) for s in steps]
    for t in threads:
        t.start()
    seen = [store.sql("select count(*) from calls", 1, 30).rows[0][0] for _ in range(6)]
    stop.set()
    for t in threads:
        t.join()
    assert seen == sorted(seen) and seen[-1] > seen[0] >= 1  # each sees what is there now
    assert not errors


OPEN = "import duckdb, sys; duckdb.connect(sys.argv[1]).close()"


def test_the_file_stays_locked_for_other_writers(tmp_path):
    from slipstream_proxy.store.backends.duckdb import DuckStore

    store = DuckStore(tmp_path / "x.duckdb")
    for _ in range(2):
        store.sql("select 1", 1, 30)
        other = subprocess.run(
            [sys.executable, "-c", OPEN, str(tmp_path / "x.duckdb")], capture_output=True, text=True, check=False
        )
        assert other.returncode != 0 and "lock" in other.stderr
    store.close()
    assert subprocess.run([sys.executable, "-c", OPEN, str(tmp_path / "x.duckdb")], check=False).returncode == 0
