"""What only our own processes ask, on the Unix socket."""

from __future__ import annotations

import time

from tests.support.plane import until


async def post_pin(plane, body):
    r = await plane.client.post("/internal/pins", json=[body])
    found = await r.json()
    return r.status, found[0] if isinstance(found, list) else found


PIN = {"key": "-", "episode": "e1", "model": "tiny", "task": "t"}


async def test_pins_are_kept(plane):
    assert await post_pin(plane, PIN) == (200, {"adapter": "tiny", "arm": "live", "chances": ""})
    await until(lambda: plane.deps.store.pins.open() == {"tiny": 1})
    await plane.call("e1", done=True)
    await until(lambda: not plane.deps.store.pins.open())


async def test_what_is_no_pin_is_said(plane):
    status, body = await post_pin(plane, {"key": "-"})
    assert (status, body["error"]["field"]) == (422, "body.0.episode")
    assert await post_pin(plane, {**PIN, "model": "other"}) == (200, None)
    r = await plane.client.post("/internal/pins", json=[{**PIN, "model": "other"}, PIN])
    assert [one and one["adapter"] for one in await r.json()] == [None, "tiny"], "one has no part in another's mistake"


async def test_a_slow_store_keeps_pins_later(plane, monkeypatch):
    monkeypatch.setattr("slipstream_proxy.control.api.routes.internal.PIN_COMMIT_TIMEOUT_S", 0.05)
    pins = plane.deps.store.pins
    kept = pins.pin_many
    monkeypatch.setattr(pins, "pin_many", lambda asks: (time.sleep(0.5), kept(asks))[1])
    began = time.monotonic()
    assert await post_pin(plane, PIN) == (200, {"adapter": "tiny", "arm": "live", "chances": ""})
    assert time.monotonic() - began < 0.4
    assert plane.deps.store.pins.open() == {}
    await until(lambda: plane.deps.store.pins.open() == {"tiny": 1})


async def test_without_a_store_a_pin_is_a_choice(plane):
    stores = plane.deps.stores
    store, ingester = stores.current, stores.ingester
    stores.replace(None, ingester)
    assert await post_pin(plane, PIN) == (200, {"adapter": "tiny", "arm": "live", "chances": ""})
    stores.replace(store, ingester)
    assert store.pins.open() == {}


async def test_alive(plane):
    r = await plane.client.get("/internal/healthz")
    assert (r.status, (await r.json())["store"]) == (200, True)
    r = await plane.client.get("/internal/metrics")
    assert r.status == 200 and b"slipstream_" in await r.read()
