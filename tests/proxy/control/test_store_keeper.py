from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.support.adapters import write_adapter
from tests.support.plane import until

from slipstream.shared.backoff import Backoff
from slipstream_proxy.control.run import store_keeper
from slipstream_proxy.control.run.store_keeper import open_or_none, rules_of
from slipstream_proxy.control.run.worker import ControlPlane
from slipstream_proxy.control.storage.identity import instance_of
from slipstream_proxy.data.engines.control_link import ControlLink
from slipstream_proxy.data.engines.live import LiveView


def test_a_data_folder_has_one_name_for_ever(tmp_path):
    assert instance_of(tmp_path) == instance_of(tmp_path)
    (tmp_path / "other").mkdir()
    assert instance_of(tmp_path / "other") != instance_of(tmp_path)


async def test_the_rules_are_those_of_the_configuration(make_plane):
    plane = await make_plane(groups={"size": 3}, trainer={"max_staleness": 5}, reward={"weights": {"judge": 2.0}})
    rules = rules_of(plane.config)
    assert (rules.group_size, rules.max_staleness, rules.weights) == (3, 5, {"judge": 2.0})


async def test_a_store_that_could_not_be_opened_is_used_once_it_can(make_plane, monkeypatch):
    broken = [True]
    monkeypatch.setattr(store_keeper, "open_or_none", lambda config: None if broken else open_or_none(config))
    monkeypatch.setattr(store_keeper, "Backoff", lambda *_: Backoff(0.05, 0.05))
    plane = await make_plane()
    await plane.call("e1", done=True)
    assert (await plane.ask("GET", "/episodes"))[0] == 503
    assert (await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0}))[0] == 200  # the spool keeps it
    broken.clear()
    await until(lambda: plane.deps.stores.current)
    assert (await plane.seen("e1"))["reward"] == 1.0


def delete_store(plane) -> Path:
    path = Path(plane.config.store_url.removeprefix("duckdb://"))
    for file in (path, Path(f"{path}.wal")):
        file.unlink(missing_ok=True)
    return path


async def test_a_store_file_that_is_deleted_is_written_again(plane):
    await plane.call("e1", text="kept", done=True)
    await plane.seen("e1")
    plane.deps.ingester.tidy()  # what is in the file alone, and no longer in the spool
    await plane.call("e2")
    await plane.seen("e2")
    path = delete_store(plane)
    await until(path.exists)
    await plane.call("e3")
    await plane.seen("e3")
    await until(lambda: _reported(plane))
    await plane.again()
    for name in ("e1", "e2", "e3"):
        assert (await plane.seen(name))["calls"] == 1


async def _reported(plane):
    lines = (await plane.ask("GET", "/training/events"))[1].splitlines()
    return any("was deleted while it was open" in line for line in lines)


async def test_a_file_deleted_just_before_a_snapshot_is_not_lost(plane):
    """The snapshot closes the file: that would be its end."""
    await plane.call("e1")
    await plane.seen("e1")
    delete_store(plane)
    plane.deps.ingester.tidy()
    assert (await plane.seen("e1"))["calls"] == 1


async def test_one_that_cannot_be_written_again_is_filled_from_the_spool(plane, monkeypatch):
    await plane.call("e1")
    await plane.seen("e1")

    def refuse(_path):
        raise OSError("no space left")

    monkeypatch.setattr("slipstream_proxy.store.backends.duckdb.restore_deleted", refuse)
    before = plane.deps.stores.current
    delete_store(plane)
    await until(lambda: plane.deps.stores.current not in (None, before))
    assert (await plane.seen("e1"))["calls"] == 1


async def test_the_api_serves_while_a_backlog_is_read(make_plane, monkeypatch):
    monkeypatch.setattr(store_keeper, "CATCH_UP", 0.0)
    monkeypatch.setattr("slipstream_proxy.control.storage.ingester.ROUND_RECORDS", 4)
    plane = await make_plane()
    write_adapter(plane.config.adapters_dir / "tiny@1")
    assert (await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1"}))[1]["state"] == "live"
    store = Path(plane.config.store_url.removeprefix("duckdb://"))
    for n in range(40):
        await plane.call(f"e{n}", at=plane.deps.now() - 100)
    await plane.seen("e39")
    await plane.stop()
    store.unlink()  # all of it is to be read from the spool again
    (plane.config.root / "live.json").unlink()
    slow = store_keeper.Ingester.round  # type: ignore[attr-defined]

    async def slowly(self):
        await asyncio.sleep(0.1)
        return await slow(self)

    monkeypatch.setattr(store_keeper.Ingester, "round", slowly)  # type: ignore[attr-defined]
    plane.control = ControlPlane(plane.config)
    began = time.monotonic()
    await plane.start()
    assert time.monotonic() - began < 5.0
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1"  # known before the backlog is read
    await _worker_gets_ready(plane)
    status, body = await plane.ask("GET", "/status")
    assert status == 200 and body["calls"] < 40
    await until(lambda: _behind(plane))
    await plane.seen("e39")


async def _worker_gets_ready(plane):
    """A worker that starts now, without ``live.json``, knows what is live, so that its ``/readyz`` says so."""
    (plane.config.root / "live.json").unlink()
    await plane.control.serve()
    link = ControlLink(plane.config.socket, LiveView(plane.config))
    assert not link.live.known
    following = asyncio.create_task(link.follow())
    await until(lambda: link.live.known and link.live.ready, 5.0)
    assert link.live.models["tiny"].live == "tiny@1"
    following.cancel()
    await link.close()


async def _behind(plane):
    body = (await plane.ask("GET", "/status"))[1]
    behind = any((x["stage"], x["cause"]) == ("store", "behind") for x in body["funnel"]["lines"])
    return behind and body["ingest_lag_seconds"] > 5
