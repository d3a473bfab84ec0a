from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.proxy.store.helpers import rules

from slipstream_proxy.store import open_store
from slipstream_proxy.store.protocol import Store

_numbers = itertools.count()


def _binaries() -> Path:
    """PostgreSQL's folder of programs, the newest version's."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    if found:
        return found[-1].parent
    if (initdb := shutil.which("initdb")) is not None:
        return Path(initdb).resolve().parent
    pytest.fail("PostgreSQL's programs are missing: apt-get install -y postgresql", pytrace=False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL (of the database ``postgres``) of a server of this session's own, on a Unix socket."""
    binaries = _binaries()
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
        yield url
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        server.wait(60)
        said.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty DuckDB store's file: copying it is faster than making one."""
    path = tmp_path_factory.mktemp("empty") / "store.duckdb"
    open_store(f"duckdb:///{path}", rules()).close()
    return path


@pytest.fixture(params=["duckdb", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, empty store's URL, for each implementation."""
    if request.param == "duckdb":
        shutil.copy(request.getfixturevalue("empty"), tmp_path / "store.duckdb")
        return f"duckdb:///{tmp_path / 'store.duckdb'}"
    server = request.getfixturevalue("postgres")
    name = f"s{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as con:
        con.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


@pytest.fixture
def opened(url: str) -> Iterator[Callable[..., Store]]:
    """Opens the store at ``url`` with rules, as often as asked; all are closed at the end."""
    made: list[Store] = []

    def open_it(*, instance: str = "local", **kw: Any) -> Store:
        made.append(open_store(url, rules(**kw), instance=instance))
        return made[-1]

    yield open_it
    for one in made:
        one.close()


@pytest.fixture
def store(opened: Callable[..., Store]) -> Store:
    return opened()
