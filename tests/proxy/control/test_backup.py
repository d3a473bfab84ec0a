"""A backup while agents work: they notice nothing, and what they were told before stands in it, once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psycopg
import pytest
from tests.chaos.running import API, Running
from tests.support import slipstream
from tests.support.fake_engine import FakeEngine
from tests.support.postgres import postgres, postgres_programs  # noqa: F401 - a fixture

from slipstream.settings import Config
from slipstream_backup import archive as backup
from slipstream_backup.tenants import served_tenants
from slipstream_proxy.store.tables.driver import StoreError


class Proxy(Running):
    def __init__(self, folder: Path, engine: FakeEngine, store: str | None) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder, engine, 0)
        self.store = store

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **({"store": {"url": self.store}} if self.store else {})}


async def agent(proxy: Proxy, name: str, stop: asyncio.Event, told: dict[str, float], slowest: list[float]) -> None:
    for turn in range(10**6):
        messages = [{"role": "user", "content": f"{name} {turn}"}]
        headers = {"x-slipstream-episode": f"{name}-{turn // 4}", "x-slipstream-task": "t"}
        began = time.monotonic()
        async with proxy.session.post(
            f"{proxy.url}/v1/chat/completions", json={"model": "tiny", "messages": messages}, headers=headers
        ) as r:
            await r.read()
            assert r.status == 200
        told[r.headers["x-slipstream-call"]] = time.monotonic()
        slowest.append(time.monotonic() - began)
        if turn % 4 == 3:
            async with proxy.session.post(
                f"{proxy.url}{API}/episodes/{name}-{turn // 4}/rewards", json={"value": 1.0}
            ) as r:
                assert r.status == 200
        if stop.is_set():
            return


@pytest.fixture(params=["duckdb", pytest.param("postgres", marks=pytest.mark.slow)])
def stores(request: pytest.FixtureRequest) -> tuple[str | None, str | None]:
    """URLs of the store that is backed up, and of the empty one that the backup goes into."""
    if request.param == "duckdb":
        return None, None
    server: str = request.getfixturevalue("postgres")
    with psycopg.connect(server, autocommit=True) as con:
        for name in ("before", "after"):
            con.execute(f"DROP DATABASE IF EXISTS backup_{name}")
            con.execute(f"CREATE DATABASE backup_{name}")
    return server.replace("///postgres?", "///backup_before?"), server.replace("///postgres?", "///backup_after?")


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_backup_under_load(tmp_path, stores):
    engine = await FakeEngine().start()
    old, new = Proxy(tmp_path / "old", engine, stores[0]), Proxy(tmp_path / "new", engine, stores[1])
    told: dict[str, float] = {}
    slowest: list[float] = []
    file = tmp_path / "all.tar"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as old.session:
        new.session = old.session
        try:
            await old.start()
            (old.data / "adapters" / "tiny@1").mkdir(parents=True)
            (old.data / "adapters" / "tiny@1" / "weights").write_bytes(os.urandom(100_000))
            stop = asyncio.Event()
            agents = [asyncio.create_task(agent(old, f"a{n}", stop, told, slowest)) for n in range(4)]
            while len(told) < 30:
                await asyncio.sleep(0.1)
            began = time.monotonic()
            argv = slipstream("backup", str(file), "--url", old.url)
            run = await asyncio.to_thread(
                subprocess.run, argv, capture_output=True, text=True, timeout=120, check=False
            )
            assert run.returncode == 0, run.stderr
            await asyncio.sleep(0.3)
            stop.set()
            await asyncio.gather(*agents)
            assert not list(old.data.glob(f"{backup.STAGE_PREFIX}*"))
            await old.kill_all()  # with all that it had

            new.data.mkdir()
            with tarfile.open(file) as tar:
                names = tar.getnames()
                tar.extractall(new.data, filter="data")
            assert not {"lock", "proxy.json", "control.sock"} & set(names)
            saved = (new.data / "adapters" / "tiny@1" / "weights").read_bytes()
            assert saved == (old.data / "adapters" / "tiny@1" / "weights").read_bytes()
            if stores[1]:
                dump = new.data / "slipstream.dump"
                argv = [str(postgres_programs() / "pg_restore"), "-d", stores[1], str(dump)]
                subprocess.run(argv, check=True, timeout=120)
                with psycopg.connect(stores[1], autocommit=True) as con:  # as a minute later: until then the copy says
                    con.execute("UPDATE t_meta SET value = '1.0' WHERE name LIKE 'proxy/%'")  # that the old one lives
            await new.start()
            before = {call for call, at in told.items() if at < began}
            assert len(before) > 20
            stored: list[str] = []
            end = time.monotonic() + 60
            while True:
                with contextlib.suppress(
                    aiohttp.ClientError, KeyError
                ):  # a store that is not ready answers with an error
                    body = {"query": "select id from calls", "limit": 100_000}
                    async with new.session.post(f"{new.url}{API}/sql", json=body) as r:
                        stored = [row[0] for row in (await r.json())["rows"]]
                    if before <= set(stored):
                        break
                assert time.monotonic() < end, f"{len(before - set(stored))} calls are missing"
                await asyncio.sleep(0.1)
            assert len(stored) == len(set(stored))
        finally:
            await old.stop()
            await new.stop()
            await engine.stop()


def test_what_goes_or_grows_meanwhile(tmp_path):
    root = tmp_path / "data"
    (root / "checkpoints").mkdir(parents=True)
    (root / "checkpoints" / "state").write_bytes(b"x" * 5000)
    (root / "gone").symlink_to(root / "nothing")
    (root / "keys.json").write_text("{}")
    (root / "slipstream.duckdb").write_text("not this one")
    (root / f"{backup.STAGE_PREFIX}other").mkdir()
    stage = root / f"{backup.STAGE_PREFIX}1"
    (stage / "spool").mkdir(parents=True)
    (stage / "spool" / "data0-1.seg").write_bytes(b"frames")
    os.link(stage / "spool" / "data0-1.seg", tmp_path / "second name")
    (stage / "slipstream.duckdb").write_text("this one")
    out = io.BytesIO()
    backup.write(out, root, stage, tmp_path / "no adapters yet")
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        found = {m.name: m for m in tar.getmembers()}
        assert set(found) == {"checkpoints/state", "keys.json", "spool/data0-1.seg", "slipstream.duckdb"}
        assert all(m.isreg() for m in found.values())
        copy = tar.extractfile("slipstream.duckdb")
        assert copy is not None and copy.read() == b"this one"


def test_what_a_killed_proxy_left_goes(tmp_path):
    (tmp_path / "spool").mkdir()
    (tmp_path / f"{backup.STAGE_PREFIX}0-x").mkdir()

    class Driver:
        def copy_to(self, folder: Path, but: object) -> Path:
            (folder / "copy").touch()
            return folder / "copy"

    store: Any = SimpleNamespace(db=Driver())
    with backup.staged(tmp_path, store, None) as stage, backup.staged(tmp_path, store, None) as other:
        assert {p.name for p in tmp_path.glob(f"{backup.STAGE_PREFIX}*")} == {stage.name, other.name}
        assert (stage / "copy").exists()
    assert not list(tmp_path.glob(f"{backup.STAGE_PREFIX}*"))


def test_a_tenant_that_does_not_answer_is_named(tmp_path):
    config = Config.model_validate({"data_dir": str(tmp_path), "tenants": {"acme": {}}})
    assert served_tenants(config) == {}  # nothing was ever kept for it
    (tmp_path / "tenants" / "acme").mkdir(parents=True)
    with pytest.raises(StoreError, match="the tenant acme does not answer"):
        served_tenants(config)
    assert served_tenants(config.model_copy(update={"tenants": {}})) == {}
