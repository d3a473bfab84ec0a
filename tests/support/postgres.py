"""A PostgreSQL server of the test session's own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest


def postgres_programs() -> Path:
    """PostgreSQL's folder of programs, the newest version's."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    if found:
        return found[-1].parent
    if (initdb := shutil.which("initdb")) is not None:
        return Path(initdb).resolve().parent
    pytest.fail("PostgreSQL's programs are missing: apt-get install -y postgresql", pytrace=False)


class PostgresServer(NamedTuple):
    url: str
    """Of the database ``postgres``."""
    pid: int


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL (of the database ``postgres``) of a server of this session's own, on a Unix socket."""
    with postgres_server() as server:
        yield server.url


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server on a Unix socket. What it has committed outlives its processes, and not the machine."""
    binaries = postgres_programs()
    # Not tmp_path: a socket's path must be short, and the server's user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    user: dict[str, Any] = {}
    name = "postgres"
    if os.getuid() == 0:
        who = pwd.getpwnam("postgres")
        os.chown(folder, who.pw_uid, who.pw_gid)
        user = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    else:
        name = pwd.getpwuid(os.getuid()).pw_name
    data = folder / "data"
    env = {**os.environ, "LC_ALL": "C", "HOME": str(folder)}
    made = subprocess.run(
        [binaries / "initdb", "-D", data, "-A", "trust", "-U", name, "-E", "UTF8", "--no-sync"],
        cwd=folder, env=env, capture_output=True, text=True, check=False, **user,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    said = (folder / "log").open("wb")
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "fsync": "off",
        "max_connections": "200",
        "shared_buffers": "64MB",
        "synchronous_commit": "off",
    }
    server = subprocess.Popen(
        [binaries / "postgres", "-D", data, *(f"--{k}={v}" for k, v in settings.items())],
        cwd=folder, env=env, stdout=said, stderr=said, **user,
    )  # fmt: skip
    url = f"postgresql:///postgres?host={folder}&user={name}"
    try:
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.1)
        yield PostgresServer(url, server.pid)
    finally:
        server.send_signal(signal.SIGCONT)
        server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        server.wait(60)
        said.close()
        shutil.rmtree(folder, ignore_errors=True)


_numbers = itertools.count()


def fresh_schema(server: str) -> str:
    """URL of an empty schema of a server's."""
    name = f"s{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as con:
        con.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"
