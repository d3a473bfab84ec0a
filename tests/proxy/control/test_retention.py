from __future__ import annotations

import json
import time

import pyarrow.parquet as pq
import pytest
from tests.support.plane import until

from slipstream_proxy.control.observe import disk_space


async def test_old_days_are_archived_and_dropped(make_plane, tmp_path):
    """``store.keep_days`` with ``store.archive``: a day is Parquet before its table goes; later days stay."""
    plane = await make_plane(store={"keep_days": 2, "archive": str(tmp_path / "cold")})
    old = plane.deps.now() - 5 * 86400
    await plane.call("old", at=old, text="long ago")
    await plane.call("new")
    await until(lambda: _retained(plane))
    day = time.strftime("%Y-%m-%d", time.gmtime(old))
    rows = pq.read_table(tmp_path / "cold" / f"calls-{day}.parquet").to_pylist()
    assert [(r["episode"], json.loads(r["messages"])[0]["content"]) for r in rows] == [("old", "long ago")]
    assert rows[0]["completion_ids"] == [[4, 5]]
    assert (await plane.seen("new"))["call_list"] != []
    assert (await plane.seen("old"))["call_list"] == []
    gone = {"id": "old", "adapters": [], "made_from": [], "anew": [], "steps": [], "cases": [], "exports": []}
    assert await plane.ask("DELETE", "/episodes/old") == (200, gone)
    await plane.deps.forgetter.erase()
    assert pq.read_table(tmp_path / "cold" / f"calls-{day}.parquet").num_rows == 0


async def test_the_oldest_days_go_where_the_folder_is_too_large(make_plane):
    """The newest day stays, however small ``data.max_gb`` is. ``status`` says what takes the space."""
    plane = await make_plane(data={"max_gb": 1e-6})
    now = plane.deps.now()
    for age in (0, 1, 4):
        await plane.call(f"e{age}", at=now - age * 86400)
        await plane.seen(f"e{age}")
    await until(lambda: _retained(plane, 2))
    assert [len((await plane.seen(f"e{age}"))["call_list"]) for age in (0, 1, 4)] == [1, 0, 0]
    told = (await plane.ask("GET", "/status"))[1]["space"]
    assert told["limit"] == 1000 and sum(told["parts"].values()) > 1000


async def test_status_shows_what_the_folder_takes_now(make_plane, monkeypatch):
    plane = await make_plane()
    monkeypatch.setattr(disk_space, "MEASURED_SECONDS", 0.0)
    before = (await plane.ask("GET", "/status"))[1]["space"]["parts"]
    (plane.config.root / "own").mkdir()
    (plane.config.root / "own" / "large").write_bytes(b"x" * 5_000_000)
    after = (await plane.ask("GET", "/status"))[1]["space"]["parts"]
    assert "own" not in before and after["own"] >= 5_000_000


async def _retained(plane, days=1):
    plane.control.sweeper.next_retention = 0.0  # it is looked at every ten minutes
    events = (await plane.ask("GET", "/training/events"))[1].splitlines()
    return sum(json.loads(e)["kind"] == "retention" for e in events) >= days


@pytest.mark.parametrize("jump", [7200.0, 3 * 86_400.0])
async def test_a_jump_of_the_clock_makes_nothing_expire(make_plane, jump):
    """An early reward and an early end wait ``reward.orphan_ttl`` real seconds; a day is kept for ``store.keep_days``."""
    plane = await make_plane(store={"keep_days": 1})
    await plane.call("kept")
    await plane.seen("kept")
    for path in ("rewards", "done"):
        body = {"value": 0.5} if path == "rewards" else None
        assert (await plane.ask("POST", f"/episodes/late/{path}", body))[0] == 200
    sweeps = _sweeps(plane)
    await until(lambda: sweeps)  # the clock was right once
    right = plane.deps.now
    plane.deps.now = lambda: right() + jump
    plane.control.sweeper.next_retention = 0.0
    await until(lambda: max(sweeps, default=0.0) > right() + jump - 60)
    plane.deps.now = right
    swept = len(sweeps)
    await until(lambda: len(sweeps) > swept)
    await plane.call("late")
    seen = await plane.seen("late")
    assert (seen["reward"], seen["state"]) == (0.5, "done")
    assert len((await plane.seen("kept"))["call_list"]) == 1


def _sweeps(plane) -> list[float]:
    """The time of each of the store's sweeps, as they come."""
    found: list[float] = []
    sweep = plane.deps.store.sweep

    def noted(*args):
        sweep(*args)
        found.append(args[0])

    plane.deps.store.sweep = noted
    return found


async def test_a_day_stays_where_its_archive_cannot_be_written_and_status_says_so(make_plane, tmp_path):
    (tmp_path / "cold").write_text("no folder")
    plane = await make_plane(store={"keep_days": 2, "archive": str(tmp_path / "cold")})
    await plane.call("old", at=plane.deps.now() - 5 * 86400)
    await plane.seen("old")

    async def said() -> list[dict[str, str]]:
        plane.control.sweeper.next_retention = 0.0
        lines = (await plane.ask("GET", "/status"))[1]["funnel"]["lines"]
        return [line for line in lines if line["cause"] == "archive"]

    await until(said)
    (line,) = await said()
    assert "cold" in line["text"] and "store.archive" in line["fix"] and line["severity"] == "slows"
    assert (await plane.seen("old"))["call_list"] != []
    (tmp_path / "cold").unlink()
    await until(lambda: _retained(plane))
    assert (await plane.seen("old"))["call_list"] == [] and not await said()
