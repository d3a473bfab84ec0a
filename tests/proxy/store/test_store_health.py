"""A PostgreSQL that hangs: control routes say so within a second, agents do not wait for it, and nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config, until

from slipstream_proxy.control.storage.store_handle import StoreHealth, probe_of

ROUTES = (
    ("GET", "/backup", None), ("GET", "/export", None), ("GET", "/export?format=parquet", None), ("GET", "/episodes", None), ("GET", "/episodes/e1", None), ("GET", "/success", None), ("POST", "/sql", {"query": "SELECT 1"}),
    ("POST", "/groups/lease", {"worker": "j"}), ("POST", "/batches/lease", {"worker": "t"}), ("GET", "/training/events", None),
)  # fmt: skip


@pytest.fixture
async def plane(postgres, tmp_path):
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute("DROP SCHEMA IF EXISTS away CASCADE; CREATE SCHEMA away")
    engine = await LoraEngine().start()
    config = make_config(tmp_path, engine, store={"url": f"{postgres}&options=-csearch_path%3Daway"})
    made = await Plane(config, engine).start()
    yield made
    await made.stop()
    await engine.stop()


@contextmanager
def hanging(url: str):
    """Every process of the server stands still."""
    folder = Path(parse_qs(urlsplit(url).query)["host"][0])
    main = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    pids = [main, *map(int, children)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_a_database_that_hangs(plane, postgres):
    await plane.call("e1")
    await plane.seen("e1")
    with hanging(postgres):
        for method, path, body in ROUTES:
            began = time.monotonic()
            status, answer = await plane.ask(method, path, body)
            assert (status, time.monotonic() - began < 1.0) == (503, True), (path, answer, time.monotonic() - began)
            assert answer["error"]["fix"]
        began = time.monotonic()
        pinned = await plane.client.post("/internal/pins", json=[{"key": "-", "episode": "new", "model": "tiny"}])
        assert (await pinned.json(), time.monotonic() - began < 0.5) == (
            [{"adapter": "tiny", "arm": "live", "chances": ""}],
            True,
        )
        began = time.monotonic()
        assert (await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0}))[0] == 200  # the spool has it
        status, body = await plane.ask("GET", "/status")
        assert time.monotonic() - began < 1.0
        assert (status, body["funnel"]["lines"][0]["stage"], body["funnel"]["lines"][0]["cause"]) == (
            200,
            "store",
            "away",
        )
        text = await (await plane.client.get("/internal/metrics")).text()
        assert "slipstream_store_up 0.0" in text and 'slipstream_funnel{cause="away",stage="store"} 1.0' in text
    await until(lambda: plane.deps.health.up)
    assert (await plane.seen("e1"))["id"] == "e1"
    await until(lambda: _rewarded(plane))


@pytest.mark.parametrize(("path", "body"), [("/episodes/e1/done", {}), ("/annotations", {"text": "x"})])
async def test_who_changes_something_as_it_begins_to_hang(plane, postgres, path, body):
    """Nobody has found out yet: the change is kept in the spool, and is not waited for."""
    await plane.call("e1")
    await plane.seen("e1")
    with hanging(postgres):
        assert plane.deps.health.up
        began = time.monotonic()
        status, _ = await plane.ask("POST", path, body)
        assert status in (200, 503) and time.monotonic() - began < 3.0
    await until(lambda: plane.deps.health.up)
    if path.endswith("done"):
        await until(lambda: _done(plane))


async def _done(plane):
    return (await plane.seen("e1"))["state"] == "done"


async def _rewarded(plane):
    return (await plane.seen("e1"))["reward"] == 1.0


async def test_a_database_that_refuses_connections(tmp_path):
    health = StoreHealth(probe_of(f"postgresql:///x?host={tmp_path}"))
    assert not await health.check() and not health.up


async def test_a_file_needs_no_probe():
    health = StoreHealth(probe_of("duckdb:///x"))
    health.start()
    assert await health.check() and health.up
    await health.stop()


async def test_one_slow_probe_is_no_outage_and_two_are(caplog):
    """At its start a process may be too busy to hear the answer in time."""
    fails = [True, False, True, True, True, False]

    async def probe() -> None:
        if fails.pop(0):
            raise OSError("no answer")

    health = StoreHealth(probe)
    assert [await health.check() for _ in range(6)] == [False, True, False, False, False, True]
    assert [r.getMessage().split(":")[0] for r in caplog.records if "database" in r.getMessage()] == [
        "the store's database is away",
        "the store's database is back",
    ]
