from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys

import aiohttp
from tests.support.plane import ALL, API, make_config, until

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
