from __future__ import annotations

import json
import time

import pyarrow.parquet as pq
from tests.support.plane import until


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
    assert await plane.ask("DELETE", "/episodes/old") == (200, {"id": "old", "adapters": [], "exports": []})
    await plane.deps.forgetter.erase()
    assert pq.read_table(tmp_path / "cold" / f"calls-{day}.parquet").num_rows == 0


async def _retained(plane):
    plane.control.sweeper.next_retention = 0.0  # it is looked at every ten minutes
    events = (await plane.ask("GET", "/training/events"))[1].splitlines()
    return any(json.loads(e)["kind"] == "retention" for e in events)
