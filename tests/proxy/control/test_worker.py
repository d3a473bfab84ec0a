from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
import time

import aiohttp
import pyarrow.parquet as pq
from tests.proxy.control.conftest import ALL, API, make_config, until

from slipstream_proxy.control.worker import CONFIG_ENV


async def test_the_process_serves_its_socket_to_its_owner_and_ends_cleanly(tmp_path, engine):
    config = make_config(tmp_path, engine)
    env = {**os.environ, CONFIG_ENV: config.model_dump_json()}
    p = await asyncio.create_subprocess_exec(sys.executable, "-m", "slipstream_proxy.control.worker", env=env)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(config.socket))) as session:

            async def status():
                assert p.returncode is None
                try:
                    auth = {"x-slipstream-auth": json.dumps({"key": "-", "scopes": ALL})}
                    async with session.get(f"http://localhost{API}/status", headers=auth) as r:
                        return await r.json() if r.status == 200 else None
                except aiohttp.ClientError:
                    return None

            body = await until(status, 120)
            assert body["models"] == {"tiny": "tiny"}
            assert stat.S_IMODE(config.socket.stat().st_mode) == 0o600
        p.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(p.wait(), 60) == 0
        assert not config.socket.exists()
    finally:
        if p.returncode is None:
            p.kill()
            await p.wait()


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
    assert pq.read_table(tmp_path / "cold" / f"calls-{day}.parquet").num_rows == 0


async def _retained(plane):
    plane.control._next_retention = 0.0  # it is looked at every ten minutes
    events = (await plane.ask("GET", "/training/events"))[1].splitlines()
    return any(json.loads(e)["kind"] == "retention" for e in events)
