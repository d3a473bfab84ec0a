"""What only our own processes ask, on the Unix socket."""

from __future__ import annotations

from tests.support.plane import until


async def post_pin(plane, body):
    r = await plane.client.post("/internal/pin", json=body)
    return r.status, await r.json()


PIN = {"key": "-", "episode": "e1", "model": "tiny", "task": "t"}


async def test_pins_are_kept(plane):
    assert await post_pin(plane, PIN) == (200, {"adapter": "tiny", "arm": "live", "chances": ""})
    assert plane.deps.store.pins.open() == {"tiny": 1}
    await plane.call("e1", done=True)
    await until(lambda: not plane.deps.store.pins.open())


async def test_what_is_no_pin_is_said(plane):
    status, body = await post_pin(plane, {"key": "-"})
    assert (status, body["error"]["field"]) == (422, "body.episode")
    status, body = await post_pin(plane, {**PIN, "model": "other"})
    assert (status, body["error"]["field"]) == (404, "body.model")


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
