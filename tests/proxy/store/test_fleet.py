"""Several proxies, each with a spool of its own, on one PostgreSQL."""

from __future__ import annotations

import asyncio

import psycopg
import pyarrow as pa
import pytest
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config, until
from tests.support.store_writes import all_adapters, put_adapter

from slipstream.contract import Adapter
from slipstream_proxy.control.run.worker import ControlPlane
from slipstream_proxy.control.storage.identity import instance_of


@pytest.fixture
def shared(postgres) -> str:
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute("DROP SCHEMA IF EXISTS planes CASCADE; CREATE SCHEMA planes")
    return f"{postgres}&options=-csearch_path%3Dplanes"


@pytest.fixture
async def make_fleet(shared, tmp_path):
    """``await make_fleet(gate={…})``: two control planes on one store, with one engine and one adapters folder."""
    engine = await LoraEngine().start()
    planes: list[Plane] = []

    async def make(**sections) -> list[Plane]:
        sections = {"store": {"url": shared}, "adapters": {"dir": str(tmp_path / "adapters")}, **sections}
        for name in "ab":
            planes.append(await Plane(make_config(tmp_path / name, engine, **sections), engine).start())
        return planes

    yield make
    for plane in planes:
        await plane.stop()
    await engine.stop()


@pytest.fixture
async def fleet(make_fleet):
    return await make_fleet()


async def register(plane: Plane, n: int, *, wait: float = 60, **more):
    write_adapter(plane.config.adapters_dir / f"tiny@{n}", fill=n)
    return await plane.ask("POST", f"/adapters?wait={wait}", {"path": f"tiny@{n}", **more})


async def pin(plane: Plane, episode: str) -> str:
    body = {"key": "-", "episode": episode, "model": "tiny", "task": "t"}
    return (await (await plane.client.post("/internal/pins", json=[body])).json())[0]["adapter"]


def live(plane: Plane) -> str:
    return plane.deps.live.value["models"]["tiny"]["live"]


def states(plane: Plane) -> dict[str, str]:
    return {n: a.state.value for n, a in plane.deps.rollout.registry.items.items()}


async def _calls(plane, count):
    return (await plane.ask("GET", "/status"))[1]["calls"] == count


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
    assert (await b.ask("POST", "/episodes/a5/rewards", {"value": 0.5}))[1] == {
        "stored": True,
        "known": True,
        "fix": None,
        "done": True,
    }
    assert (await a.seen("a5"))["reward"] == 0.5


async def test_what_one_proxy_does_with_adapters_all_do(fleet):
    a, b = fleet
    assert (await register(a, 1))[1]["state"] == "live"
    await until(lambda: live(b) == "tiny@1")
    assert (await register(b, 2))[1]["state"] == "live"
    await until(lambda: live(a) == "tiny@2" and states(a) == {"tiny@1": "retired", "tiny@2": "live"})
    assert (await a.ask("POST", "/adapters/tiny@2/rollback", {"reason": "worse"}))[1]["state"] == "rolled_back"
    await until(lambda: live(b) == "tiny@1" and states(b) == states(a))
    assert (await b.ask("POST", "/adapters/2/promote"))[0] == 200
    await until(lambda: live(a) == live(b) == "tiny@2")
    assert (await b.ask("POST", "/adapters", {"path": "tiny@1"}))[0] == 201  # asked twice, at another proxy
    _, text = await a.ask("GET", "/training/events")
    kinds = [line.split('"kind":"')[1].split('"')[0] for line in text.splitlines()]
    assert (kinds.count("promote"), kinds.count("rollback"), kinds.count("refused")) == (3, 1, 0)
    assert a.engine.calls.count(("load", "tiny@1")) <= 3  # one engine: a name that is there already is not loaded again


async def test_an_episode_keeps_its_adapter_through_both(make_fleet):
    a, b = await make_fleet()
    for plane in (a, b):
        plane.deps.rollout.swapper.grace = 0.2
    await register(a, 1)
    assert await pin(a, "old") == "tiny@1"
    await a.call("old", adapter="tiny@1")
    await a.seen("old")
    await register(b, 2)
    assert await pin(b, "old") == "tiny@1"
    assert await pin(b, "new") == "tiny@2" == await pin(a, "new")
    await until(lambda: live(a) == "tiny@2")
    assert await pin(a, "old") == "tiny@1"
    assert set(a.engine.adapters) == {"tiny@1", "tiny@2"}
    await b.call("old", adapter="tiny@1", done=True)
    await until(lambda: set(a.engine.adapters) == {"tiny@2"})  # ended through b, unloaded though a began it


async def test_an_episode_of_an_adapter_that_is_news_here(make_fleet):
    """Its first call went through a proxy that knows the adapter, its second comes before this one has looked."""
    a, b = await make_fleet()
    await register(a, 1)
    assert await pin(a, "e") == "tiny@1"
    assert await pin(b, "e") == "tiny@1"
    assert "tiny@1" in b.deps.engines.loaded()


async def test_one_gate_decides(make_fleet):
    a, b = await make_fleet(gate={"mode": "guard", "holdout": 0.5})
    await asyncio.gather(register(a, 1), register(b, 2))
    await until(lambda: states(a) == states(b) and "loading" not in states(a).values())
    assert sorted(states(a).values()) == ["candidate", "retired"]  # the later one took the undecided one's place
    name = next(n for n, s in states(a).items() if s == "candidate")
    verdict = [p.ask("POST", f"/adapters/{name}/{what}") for p, what in ((a, "promote"), (b, "rollback"), (a, "rollback"), (b, "promote"))]  # fmt: skip
    found = await asyncio.gather(*verdict)
    assert {status for status, _ in found} <= {200, 409}
    await until(lambda: states(a) == states(b) and "loading" not in states(a).values())
    told = all_adapters(a.deps.store)
    assert {x.name: x.state.value for x in told} == states(a)
    assert sum(x.state == "live" for x in told) <= 1


async def test_a_proxy_that_dies_while_it_loads_is_replaced(fleet):
    a, b = fleet
    await a.control.stop()  # nobody loads at a any more
    b.deps.rollout.fleet.take_over = 0.0
    write_adapter(b.config.adapters_dir / "tiny@1")
    left = Adapter(name="tiny@1", model="tiny", version=1, state="loading", created=b.deps.now(), path="tiny@1")
    put_adapter(b.deps.store, left)
    await until(lambda: live(b) == "tiny@1")
    a.control = ControlPlane(a.config)
    a.deps = await a.control.start()
    assert live(a) == "tiny@1"


async def test_files_that_only_the_other_proxy_sees_are_no_reason_to_take_it_back(make_fleet, tmp_path):
    a, b = await make_fleet()
    await register(a, 1)
    await until(lambda: live(b) == "tiny@1")
    lost = LoraEngine()
    lost.refuse["tiny@2"] = 404
    await lost.start()
    b.deps.engines.engines[0].url = lost.url  # an engine that sees no new file
    b.config.adapters.dir = str(tmp_path / "elsewhere")
    assert (await register(a, 2))[1]["state"] == "live"
    await until(lambda: b.deps.rollout.fleet.behind)
    waiting = (await b.ask("GET", "/status"))[1]["waiting"]
    assert any("tiny@2 is live and cannot be loaded here" in line for line in waiting)
    assert (live(a), live(b)) == ("tiny@2", "tiny@1")
    assert (await b.ask("POST", "/adapters/1/rollback"))[0] == 503
    await asyncio.sleep(0.3)
    assert states(a)["tiny@2"] == "live"
    del lost.refuse["tiny@2"]
    lost.adapters["tiny@2"] = str(a.config.adapters_dir / "tiny@2")
    await until(lambda: live(b) == "tiny@2")
    await lost.stop()


async def test_without_the_shared_store_nothing_is_decided(make_fleet, monkeypatch):
    a, _ = await make_fleet()
    await register(a, 1)

    def away(*_):
        raise OSError("the server is away")

    monkeypatch.setattr(a.deps.store.adapters, "swap", away)
    status, body = await a.ask("POST", "/adapters/1/rollback")
    assert (status, live(a)) == (503, "tiny@1")
    assert "the server is away" in body["error"]["message"]


async def test_work_is_never_handed_out_twice(make_fleet):
    a, b = await make_fleet(groups={"size": 2}, trainer={"min_groups": 1})
    for t in range(12):
        for i in range(2):
            plane = (a, b)[(t + i) % 2]
            await plane.call(f"t{t}-{i}", task=f"t{t}", done=True)
    await until(lambda: _calls(a, 24))

    async def judge(plane, worker):
        found = []
        while (got := await plane.ask("POST", "/groups/lease", {"worker": worker}))[0] == 200:
            found += [g["id"] for g in got[1]["groups"]]
        return found

    judged = await asyncio.gather(*(judge(p, f"w{i}") for i, p in enumerate((a, b, a, b))))
    groups = [g for found in judged for g in found]
    assert len(groups) == len(set(groups)) == 12
    for t in range(12):
        for i in range(2):
            await (a, b)[i].ask("POST", f"/episodes/t{t}-{i}/rewards", {"value": float(i)})

    async def lease(plane, worker):
        found = []
        body = {"worker": worker, "min_groups": 1, "max_groups": 2, "max_wait": 0}
        while True:
            r = await plane.client.post("/slipstream/v1/batches/lease", json=body, headers=plane.as_())
            if r.status == 204:
                return found
            table = pa.ipc.open_stream(await r.read()).read_all()
            found += sorted(set(table["group"].to_pylist()))

    leased = await asyncio.gather(*(lease(p, f"t{i}") for i, p in enumerate((a, b, a, b))))
    groups = [g for found in leased for g in found]
    assert len(groups) == len(set(groups)) == 12


def be_learner(plane: Plane, token: str, seconds: float = 30.0):
    return plane.ask("POST", "/learner", {"worker": token, "place": token, "token": token, "seconds": seconds})


async def test_a_trainer_that_another_proxy_has_replaced_meanwhile_publishes_nothing(fleet, monkeypatch):
    a, b = fleet
    assert (await be_learner(a, "first", 0.2))[1]["held"]
    looked, asked = a.deps.rollout.registrar.expect_learner, 0

    async def then_another_takes_over(*args):
        nonlocal asked
        await looked(*args)
        if (asked := asked + 1) == 2:  # between the last look and the change that the proxies agree on
            await asyncio.sleep(0.3)
            assert (await be_learner(b, "second"))[1]["held"]

    monkeypatch.setattr(
        type(a.deps.rollout.registrar), "expect_learner", lambda _, *args: then_another_takes_over(*args)
    )
    name = (await a.ask("POST", "/adapters/claim", {"learner": "first"}))[1]["name"]
    status, body = await register(a, int(name.rpartition("@")[2]), wait=0, learner="first")
    assert (status, body["error"]["field"]) == (409, "body.learner")
    assert (await b.ask("GET", "/adapters"))[1]["adapters"] == []
    assert (await be_learner(a, "first"))[1]["worker"] == "second"
    assert (await b.ask("POST", "/adapters/claim", {"learner": "second"}))[1]["name"] != name
