"""What docs/operations.md says of backups with PostgreSQL: its dump and a copy of the data folder, of one pause, are the whole of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import tomli_w
from tests.support import process, slipstream, wait_for
from tests.support.fake_engine import FakeEngine
from tests.support.postgres import postgres, postgres_programs  # noqa: F401 - a fixture

from slipstream.client import Client
from slipstream.contract import RewardIn

pytestmark = [pytest.mark.engine, pytest.mark.deploy, pytest.mark.timeout(300)]


def server(url: str, database: str) -> str:
    return url.replace("postgresql:///postgres?", f"postgresql:///{database}?")


@contextlib.contextmanager
def proxy(folder: Path, engine: str, store: str) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    config = folder / "slipstream.toml"
    tree = {
        "data_dir": str(folder / "data"),
        "proxy": {"port": 0},
        "engine": {"urls": [engine], "name": "tiny"},
        "store": {"url": store},
    }
    config.write_text(tomli_w.dumps(tree))
    with process(slipstream("proxy", "--config", str(config)), folder / "proxy.log") as p:

        def up() -> str:
            assert p.poll() is None, (folder / "proxy.log").read_text()[-2000:]
            url = json.loads((folder / "data" / "proxy.json").read_text())["url"]
            return url if httpx.get(url + "/readyz", timeout=10, trust_env=False).is_success else ""

        yield wait_for(up, 90, 0.1, "the proxy is ready")


def call(url: str, episode: str) -> None:
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-slipstream-episode": episode, "x-slipstream-task": "t"}
    httpx.post(url + "/v1/chat/completions", json=ask, headers=headers, timeout=60, trust_env=False).raise_for_status()


def sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as con:
        for one in statements:
            con.execute(one)


def use(engine: str, url: str, folder: Path) -> None:
    """Calls and a reward, a backup, a loss of everything, a restore."""
    store, dump = server(url, "slipstream"), folder / "backup.dump"
    sql(url, "CREATE DATABASE slipstream")
    with proxy(folder / "old", engine, store) as at, Client(at) as client:
        call(at, "e1")
        client.add_reward("e1", RewardIn(value=0.75))
        client.done("e1")
        wait_for(
            lambda: (client.episode("e1").reward, client.episode("e1").state) == (0.75, "done"),
            60,
            0.1,
            "all is stored",
        )
        before = client.episode("e1", tokens=True)
    subprocess.run([postgres_programs() / "pg_dump", "-Fc", "-d", store, "-f", dump], check=True, timeout=120)
    shutil.copytree(
        folder / "old" / "data", folder / "new" / "data", ignore=shutil.ignore_patterns("*.sock", "lock", "proxy.json")
    )
    shutil.rmtree(folder / "old")
    sql(url, "DROP DATABASE slipstream", "CREATE DATABASE slipstream")
    subprocess.run([postgres_programs() / "pg_restore", "-d", store, dump], check=True, timeout=120)
    with proxy(folder / "new", engine, store) as at, Client(at) as client:
        after = wait_for(lambda: client.episode("e1", tokens=True), 60, 0.1, "the episode is there")
        assert after.model_dump() == before.model_dump()
        call(at, "e2")
        assert wait_for(lambda: client.episode("e2").calls == 1, 60, 0.1, "new calls are stored too")
        assert client.status().calls == 2, "what the spool still has is not stored again"


async def test_a_dump_and_a_copy_go_on(tmp_path: Path, postgres: str) -> None:  # noqa: F811
    engine = await FakeEngine().start()
    try:
        await asyncio.to_thread(use, engine.url, postgres, tmp_path)
    finally:
        await engine.stop()
