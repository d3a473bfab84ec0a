"""Holds of the engine: leases that put it to sleep and end by themselves."""

from __future__ import annotations

import asyncio
import json

from tests.support.adapters import write_adapter
from tests.support.plane import SHARED, give, take, until

from slipstream_proxy.control.engines import engine_lease


async def test_the_engine_sleeps_and_wakes(make_plane, engine):
    plane = await make_plane(**SHARED)
    status, hold = await take(plane)
    assert (status, hold["ready"], hold["worker"]) == (200, True, "t")
    assert not engine.sleeping.awake.is_set() and engine.sleeping.modes == ["level=1&mode=keep"]
    assert plane.deps.live.value["hold"]["worker"] == "t"
    _, said = await plane.ask("GET", "/status")
    assert any("the trainer has the GPU" in line for line in said["waiting"]) and said["engines"][0]["ok"]
    again = (await take(plane, seconds=120))[1]
    assert again["until"] > hold["until"] and len(engine.sleeping.modes) == 1
    assert (await take(plane, "other"))[0] == 409
    assert (await give(plane, "other"))[1] == {"held": False, "wake_seconds": 0.0}
    status, released = await give(plane)
    assert (status, released["held"]) == (200, True) and engine.sleeping.awake.is_set()
    assert "hold" not in plane.deps.live.value
    text = await (await plane.client.get("/internal/metrics")).text()
    assert 'slipstream_engine_holds_total{how="released"} 1.0' in text


async def test_a_hold_that_is_not_renewed_ends(make_plane, engine):
    plane = await make_plane(**SHARED)
    assert (await take(plane, seconds=0.3))[1]["ready"]
    await until(engine.sleeping.awake.is_set)
    await until(lambda: plane.deps.lease.held is None)
    assert plane.deps.lease.ended["expired"] == 1 and "hold" not in plane.deps.live.value
    assert (await take(plane, "other"))[1]["ready"]


async def test_an_engine_that_cannot_sleep(make_plane, engine, monkeypatch):
    monkeypatch.setattr(engine_lease, "WAKE_PAUSE", 0.01)
    plane = await make_plane(**SHARED)
    engine.sleeping.fail = 500
    status, body = await take(plane)
    assert status == 503 and "/sleep answered 500" in body["error"]["message"]
    assert plane.deps.lease.held is None and "hold" not in plane.deps.live.value
    engine.sleeping.fail = 404  # no sleep mode: calls wait all the same
    assert (await take(plane))[1]["ready"] and plane.deps.live.value["hold"]
    assert (await give(plane))[1]["held"]


async def test_nothing_is_loaded_while_it_sleeps(make_plane, engine):
    plane = await make_plane(**SHARED)
    await take(plane)
    write_adapter(plane.config.adapters_dir / "tiny@1")
    assert (await plane.ask("POST", "/adapters", {"path": "tiny@1"}))[0] == 201
    engine.up = False  # and nobody says that it is dead
    await asyncio.sleep(0.3)
    assert engine.calls == [] and plane.deps.live.value["engines"][0]["ok"]
    engine.up = True
    await give(plane)
    await until(lambda: ("load", "tiny@1") in engine.calls)
    assert not engine.sleeping.while_asleep


async def test_a_control_plane_that_starts_again_goes_on_with_the_hold(make_plane, engine):
    plane = await make_plane(**SHARED)
    await take(plane)
    await plane.again()
    assert plane.deps.live.value["hold"]["worker"] == "t" and plane.deps.live.value["engines"][0]["ok"]
    assert not engine.sleeping.awake.is_set()
    assert (await take(plane))[1]["ready"]
    assert (await give(plane))[1]["held"] and engine.sleeping.awake.is_set()


async def test_what_sleeps_without_a_hold_is_woken(make_plane, engine):
    plane = await make_plane(**SHARED)
    engine.sleeping.awake.clear()
    await until(engine.sleeping.awake.is_set)
    assert engine.sleeping.wakes == 1
    assert json.loads(plane.deps.live.path.read_text())["engines"]
