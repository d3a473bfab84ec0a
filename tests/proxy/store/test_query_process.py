from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.records import call

from slipstream_proxy.process import query
from slipstream_proxy.store.tables.driver import QueryError


def test_a_result_that_is_too_large_is_refused(store):
    store.ingest([call()], {})
    with pytest.raises(QueryError, match="the result is larger than|it needs more than"):
        store.sql(f"select repeat('x', {query.RESULT_BYTES + 1}) from calls", 10, 30)


def test_the_program_imports_nothing_of_ours():
    """The whole product takes a second to import, at each query."""
    tree = ast.parse(Path(query.__file__).read_text())
    names = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    names += [str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert "duckdb" in names and not [n for n in names if n.startswith("slipstream")]


def test_who_has_given_up_finds_no_traceback_in_its_log(tmp_path):
    asked = {"database": str(tmp_path / "none"), "config": {}, "role": None, "query": "", "limit": 1, "timeout": 5.0}
    argv = [sys.executable, "-P", query.__file__]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.close()
        assert process.stderr.read() == b""


def test_values_come_as_json(store):
    store.ingest([call("a")], {})
    got = store.sql("select episode, ts, cast(null as text) as nothing, 1.5 as number from calls", 10, 30)
    ((episode, ts, nothing, number),) = got.rows
    assert (episode, isinstance(ts, float), nothing, number) == ("a", True, None, 1.5)


def threads_of_children() -> list[int]:
    """Threads of each query process that this process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            if int(status["PPid"]) == os.getpid() and b"process/query.py" in (folder / "cmdline").read_bytes():
                found.append(int(status["Threads"]))
    return found


def test_threads_do_not_grow_with_the_machine(store):
    """Each thread takes address space, which is what is bounded: with 32 cores no query had enough."""
    store.ingest([call(f"e{i}") for i in range(50)], {})
    slow = "select count(*) from calls a, calls b, calls c, calls d, calls e, calls f where a.ts + b.ts > f.ts"

    def ask() -> None:
        with contextlib.suppress(QueryError):
            store.sql(slow, 10, 3)

    asking, most = threading.Thread(target=ask), 0
    asking.start()
    while asking.is_alive():
        most = max([most, *threads_of_children()])
        time.sleep(0.02)
    asking.join()
    own = 10  # the main thread, the timer that ends the query, and DuckDB's eight for reading and writing
    assert 1 <= most <= own + query.QUERY_THREADS
    stack_and_arena = 72 * 2**20
    assert query.QUERY_THREADS * stack_and_arena < query.QUERY_MEMORY_BYTES / 4
