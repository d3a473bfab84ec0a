from __future__ import annotations

import asyncio
import json

from slipstream_proxy.control.engines.live import LiveState, ModelLive


async def test_a_line_now_at_each_change_and_heartbeats(tmp_path):
    live = LiveState(tmp_path / "live.json")
    live.set({"m": ModelLive("base", "base")}, [])
    lines = live.lines(heartbeat=0.05)
    assert json.loads(await anext(lines))["models"]["m"]["live"] == "base"
    assert json.loads(await anext(lines)) == {}
    waiting = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    assert live.set(
        {"m": ModelLive("base", "m@1", [("base", "control", 0.1)])}, [{"url": "u", "ok": True, "loaded": []}]
    )
    said = json.loads(await waiting)
    while not said:
        said = json.loads(await anext(lines))
    assert said["models"]["m"] == {"base": "base", "live": "m@1", "arms": [["base", "control", 0.1]]}
    assert live.read() == said
    assert not live.set(
        {"m": ModelLive("base", "m@1", [("base", "control", 0.1)])}, [{"url": "u", "ok": True, "loaded": []}]
    )


async def test_a_file_that_is_no_json_is_nothing(tmp_path):
    live = LiveState(tmp_path / "live.json")
    assert live.read() == {}
    (tmp_path / "live.json").write_text("{")
    assert live.read() == {}


async def test_the_stream_over_the_socket(plane):
    async with plane.client.get("/internal/live") as r:
        first = json.loads(await r.content.readline())
    assert first["engines"][0]["ok"]
