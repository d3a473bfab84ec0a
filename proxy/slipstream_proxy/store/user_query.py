"""Runs a user's query in a process of its own, which can be killed: time and memory are bounded from outside.

The process is ``query_process.py``. It says ``ready`` when it has started and ``opened`` when it reads the database.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Self, TypedDict

from slipstream.contract import SqlResult
from slipstream_proxy import cores
from slipstream_proxy.store.driver import QueryError

MEMORY = 2**30
"""Bytes that a query may need, beside what the process has at its start."""
RESULT_BYTES = 64 * 2**20
START = 10.0
"""Seconds that the process may take to start and to open the database."""
FRUGAL = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Address space is what is bounded, and by default arenas and numpy's threads take it by the number of cores."""
SPARE = 0.5
"""Seconds beyond the query's time-out after which its process is killed."""


class QueryRequest(TypedDict):
    """What the process reads first."""

    database: str
    """A DuckDB file's path, or a PostgreSQL URL."""
    config: dict[str, str]
    """DuckDB's."""
    role: str | None
    """PostgreSQL's role to run as."""
    query: str
    limit: int
    timeout: float


class BoundedQuery:
    """``with BoundedQuery(request) as running:`` the process ends with the block, whatever it does."""

    def __init__(self, request: QueryRequest) -> None:
        self.timeout = request["timeout"]
        self._request = json.dumps(request).encode() + b"\n"
        self._rest = b""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "slipstream_proxy.store.query_process"]
        with cores.anywhere():
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, **FRUGAL}
            )
        self._say(self._request)
        self._expect(b"ready", START)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """The process is gone when this returns."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def open(self) -> None:
        """Returns when it reads what is there now. Raises ``QueryError``."""
        self._say(b"open\n")
        self._expect(b"opened", START)

    def result(self) -> SqlResult:
        """Raises ``QueryError``: it failed, it took too long, or it asked for too much memory."""
        answer = json.loads(self._line(self.timeout + SPARE))
        if "error" in answer:
            raise QueryError(answer["error"])
        return SqlResult(**answer)

    def _say(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)

    def _expect(self, word: bytes, seconds: float) -> None:
        line = self._line(seconds)
        if line != word:
            raise QueryError(str(json.loads(line).get("error", "the query's process failed")))

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        until, pipe, parts = time.monotonic() + seconds, self._process.stdout.fileno(), [self._rest]
        while b"\n" not in parts[-1]:
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise QueryError(f"stopped after {self.timeout:g} s")
            part = os.read(pipe, 2**20)
            if not part:
                raise QueryError(f"it needs more than {MEMORY // 2**20} MiB: ask for less")
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line
