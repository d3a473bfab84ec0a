"""Forgetting through the running control plane: unreadable at once, out of every file a little later, after a kill too."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config, until
from tests.support.postgres import fresh_schema, postgres  # noqa: F401 - a fixture

from slipstream_proxy.control.run.worker import ControlPlane
from slipstream_proxy.control.storage import forgetter
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.backends import duckfile
from slipstream_proxy.store.tables.driver import StoreError


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(forgetter, "QUIET_BEFORE_REWRITE_S", 0.2)
    monkeypatch.setattr(forgetter, "LOOK_EVERY", 0.05)


async def filled(plane, *names, **head):
    for name in names:
        await plane.call(name, text=f"SECRET-{name}", **head)
    for name in names:
        await plane.seen(name, key=head.get("key", "-"))


def holding(plane, text):
    files = [p for p in plane.config.root.rglob("*") if p.is_file()]
    return [p.name for p in files if text.encode() in p.read_bytes()]


async def until_erased(plane):
    async def erased():
        status = (await plane.ask("GET", "/status"))[1]["forgetting"]
        return status if not status["episodes"] else None

    return await until(erased)


async def test_many_in_one_request_and_one_rewriting_for_all(make_plane, monkeypatch):
    monkeypatch.setattr(forgetter, "QUIET_BEFORE_REWRITE_S", 4.0)
    plane = await make_plane()
    await filled(plane, "a", "b", "c", "kept")
    rewritings = []
    rewrite = plane.deps.store.rewrite
    monkeypatch.setattr(plane.deps.store, "rewrite", lambda: (rewritings.append(1), rewrite())[1], raising=False)
    status, body = await plane.ask("POST", "/forget", {"episodes": ["a", "b", "nobody"]})
    assert (status, body["forgotten"], body["unknown"], body["more"]) == (200, 2, ["nobody"], False)
    assert (await plane.ask("DELETE", "/episodes/c"))[0] == 200
    for name in ("a", "b", "c"):
        assert (await plane.ask("GET", f"/episodes/{name}"))[0] == 404
    assert "SECRET-a" not in str(await plane.ask("GET", "/export?format=jsonl"))
    rows = (await plane.ask("POST", "/sql", {"query": "select reply from calls"}))[1]["rows"]
    assert len(rows) == 1
    assert (await plane.ask("GET", "/status"))[1]["forgetting"]["episodes"] == 3
    assert (await until_erased(plane))["step"] == "idle"
    assert rewritings == [1]
    assert [holding(plane, f"SECRET-{n}") for n in ("a", "b", "c")] == [[], [], []]
    assert holding(plane, "SECRET-kept")
    assert (await plane.seen("kept"))["calls"] == 1


async def test_by_user_by_tag_and_by_key(make_plane):
    plane = await make_plane()
    await filled(plane, "ann1", "ann2", tags={"user": "ann", "team": "x"})
    await filled(plane, "bob", tags={"user": "bob", "team": "x"})
    await filled(plane, "cleo", key="k2", tags={"user": "ann"})
    assert (await plane.ask("POST", "/forget", {"user": "ann"}, scopes=["inference", "reward"]))[1]["forgotten"] == 2
    assert (await plane.seen("cleo", key="k2"))["calls"] == 1, "a key forgets its own alone"
    refused, body = await plane.ask("POST", "/forget", {"key": "k2"}, scopes=["inference", "reward"])
    assert (refused, body["error"]["field"]) == (403, "query.key")
    assert (await plane.ask("POST", "/forget", {"key": "k2"}))[1]["forgotten"] == 1
    assert (await plane.ask("POST", "/forget", {"tags": {"team": "x", "user": "ann"}}))[1]["forgotten"] == 0
    assert (await plane.ask("POST", "/forget", {"episodes": ["bob"], "user": "ann"}))[1]["forgotten"] == 0
    assert (await plane.ask("POST", "/forget", {"tags": {"team": "x"}}))[1]["forgotten"] == 1
    status, body = await plane.ask("POST", "/forget", {})
    assert status == 422 and "give episodes, key, tags or user" in str(body)
    assert [r["id"] for r in (await plane.ask("GET", "/episodes"))[1]["episodes"]] == []


async def test_more_than_one_request_takes(make_plane, monkeypatch):
    from slipstream import contract

    plane = await make_plane()
    await filled(plane, *(f"e{n}" for n in range(7)))
    monkeypatch.setattr(contract, "FORGET_MOST", 3)
    monkeypatch.setattr("slipstream_proxy.control.api.routes.episodes.EPISODES_PER_DELETION", 2)
    found = [(await plane.ask("POST", "/forget", {"key": "-"}))[1] for _ in range(4)]
    assert [(f["forgotten"], f["more"]) for f in found] == [(3, True), (3, True), (1, False), (0, False)]


async def test_a_restart_goes_on_with_it(make_plane, monkeypatch):
    monkeypatch.setattr(forgetter, "QUIET_BEFORE_REWRITE_S", 3600.0)
    plane = await make_plane()
    await filled(plane, "gone", "kept")
    await plane.ask("DELETE", "/episodes/gone")
    monkeypatch.setattr(forgetter, "QUIET_BEFORE_REWRITE_S", 0.2)
    await plane.again()
    assert (await plane.ask("GET", "/episodes/gone"))[0] == 404
    await until_erased(plane)
    assert holding(plane, "SECRET-gone") == []
    assert holding(plane, "SECRET-kept")


async def test_what_still_comes_for_it_is_counted_refused_and_out_of_the_spool_too(make_plane):
    plane = await make_plane()
    await filled(plane, "gone", tags={"user": "ann"})
    assert (await plane.ask("POST", "/forget", {"user": "ann"}))[1]["forgotten"] == 1
    (entry,) = [e for e in (await plane.ask("GET", "/audit"))[1]["entries"] if e["action"] == "forget"]
    assert (entry["detail"]["forgotten"], entry["detail"]["tags"]) == (1, {"user": mark_of("ann")})
    await until_erased(plane)
    await plane.call("gone", text="LATE-SECRET")
    status, said = await plane.ask("POST", "/episodes/gone/done")
    assert (status, said["error"]["message"]) == (404, "episode gone was forgotten")

    async def dropped():
        return (await plane.ask("GET", "/status"))[1]["forgetting"]["dropped"] == 1

    await until(dropped)
    assert plane.deps.live.value["forgotten"] == [f"-/{mark_of('gone')}"]
    await asyncio.to_thread(plane.deps.ingester.tidy)
    assert holding(plane, "LATE-SECRET") == []


async def test_a_stop_does_not_wait_for_it(make_plane, monkeypatch):
    """The copy rests for an hour after its first rows."""
    plane = await make_plane()
    await filled(plane, "gone", "kept")
    folder = plane.config.root
    with monkeypatch.context() as m:
        m.setattr(duckfile, "REST_PER_COPY_S", 1e6)
        await plane.ask("DELETE", "/episodes/gone")
        await until((folder / "slipstream.duckdb.rewrite").exists)
        began = time.monotonic()
        await plane.stop()
        assert time.monotonic() - began < 10.0
    assert not list(folder.glob("*.rewrite*"))
    plane.control = ControlPlane(plane.config)
    await plane.start()
    await until_erased(plane)
    assert holding(plane, "SECRET-gone") == []
    assert (await plane.seen("kept"))["calls"] == 1


async def test_none_begins_once_it_was_given_up(make_plane):
    plane = await make_plane()
    await filled(plane, "gone")
    await plane.ask("DELETE", "/episodes/gone")
    plane.deps.store.db.give_up()
    with pytest.raises(StoreError):
        await asyncio.to_thread(plane.deps.store.rewrite)
    await plane.again()
    await until_erased(plane)
    assert holding(plane, "SECRET-gone") == []


async def test_a_failure_is_told_and_tried_again(make_plane, monkeypatch):
    monkeypatch.setattr(forgetter, "RETRY_INTERVAL_S", 0.3)
    plane = await make_plane()
    await filled(plane, "gone")
    rewrite, tries = plane.deps.store.rewrite, []

    def fail():
        tries.append(1)
        if len(tries) < 3:
            raise StoreError("no room for the copy")
        return rewrite()

    monkeypatch.setattr(plane.deps.store, "rewrite", fail, raising=False)
    await plane.ask("DELETE", "/episodes/gone")

    async def failed():
        now = (await plane.ask("GET", "/status"))[1]["forgetting"]
        return now if now["error"] else None

    now = await until(failed)
    assert "no room" in now["error"] and now["episodes"] == 1
    status = await until_erased(plane)
    assert (len(tries), status["error"]) == (3, None)
    assert holding(plane, "SECRET-gone") == []


async def test_days_that_are_dropped_give_their_room_back(make_plane, monkeypatch):
    plane = await make_plane(store={"keep_days": 1})
    old = plane.deps.now() - 5 * 86_400
    for n in range(6):
        await plane.call(f"old{n}", text=random.Random(n).randbytes(300_000).hex(), at=old)  # does not compress
    await filled(plane, "new")
    await asyncio.to_thread(plane.deps.store.snapshot)
    path = plane.config.root / "slipstream.duckdb"
    before = path.stat().st_size
    monkeypatch.setattr("slipstream_proxy.control.run.retention.MIN_FREE_SHARE", 0.0)
    for look in range(400):
        if look % 40 == 0:
            plane.control.sweeper.next_retention = 0.0
            await plane.control.sweeper._retention(plane.deps.now())
        if not plane.deps.forgetter.shrink and path.stat().st_size < before:
            break
        await asyncio.sleep(0.05)
    assert path.stat().st_size < before
    assert (await plane.seen("new"))["calls"] == 1


async def test_the_spool_of_every_proxy_of_a_store(tmp_path, request, monkeypatch):
    monkeypatch.setattr(forgetter, "ASK_SHARED", 1e9)  # the other proxy asks once the status was read
    store = {"url": fresh_schema(request.getfixturevalue("postgres"))}
    engine = await LoraEngine().start()
    one, two = [await Plane(make_config(tmp_path / n, engine, store=store), engine).start() for n in ("p1", "p2")]
    await filled(two, "gone")
    await filled(one, "kept")
    assert (await one.ask("DELETE", "/episodes/gone"))[0] == 200
    first = (await one.ask("GET", "/status"))[1]["forgetting"]
    monkeypatch.setattr(forgetter, "ASK_SHARED", 0.5)

    async def erased():
        left = (await one.ask("GET", "/status"))[1]["forgetting"]
        return not left["episodes"] and not left["elsewhere"]

    await until(erased, 30.0)
    left = [p.name for p in tmp_path.rglob("*") if p.is_file() and b"SECRET-gone" in p.read_bytes()]
    for plane in (one, two):
        await plane.stop()
    await engine.stop()
    assert [(p["episodes"], p["away"]) for p in first["elsewhere"]] == [(1, False)]
    assert left == []
