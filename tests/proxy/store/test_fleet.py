"""Two control planes, each with a spool of its own, on one PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest
from tests.proxy.control.conftest import Plane, make_config, until
from tests.proxy.control.fake_engine import FakeEngine

from slipstream_proxy.control.worker import instance_of


@pytest.fixture
async def fleet(postgres, tmp_path):
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute("DROP SCHEMA IF EXISTS planes CASCADE; CREATE SCHEMA planes")
    engine = await FakeEngine().start()
    url = f"{postgres}&options=-csearch_path%3Dplanes"
    planes = [await Plane(make_config(tmp_path / n, engine, store={"url": url}), engine).start() for n in "ab"]
    yield planes
    for plane in planes:
        await plane.stop()
    await engine.stop()


async def test_each_proxy_reads_its_own_spool(fleet):
    a, b = fleet
    assert instance_of(a.config.root) == instance_of(a.config.root) != instance_of(b.config.root)
    for i in range(6):  # the same segment and writer names, at other positions
        await a.call(f"a{i}", text="long " * 50 * i)
    for i in range(3):
        await b.call(f"b{i}")
    await b.call("a0", text="another")
    await until(lambda: _calls(a, 10))
    await b.again()
    await a.again()
    await b.call("b9")
    await until(lambda: _calls(a, 11))
    assert (await a.seen("a0"))["calls"] == 2
    assert (await b.ask("POST", "/episodes/a5/rewards", {"value": 0.5}))[1] == {"stored": True, "known": True}
    assert (await a.seen("a5"))["reward"] == 0.5


async def _calls(plane, count):
    return (await plane.ask("GET", "/status"))[1]["calls"] == count
