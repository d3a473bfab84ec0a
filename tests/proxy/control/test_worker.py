from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys

import aiohttp
import pytest
from tests.support.adapters import write_adapter
from tests.support.plane import ALL, API, make_config, until

from slipstream.config import CONFIG_ENV
from slipstream.errors import StartError
from slipstream_proxy.control.run import worker


async def test_the_process_serves_its_socket_to_its_owner_and_ends_cleanly(tmp_path, engine):
    config = make_config(tmp_path, engine)
    env = {**os.environ, CONFIG_ENV: config.model_dump_json()}
    p = await asyncio.create_subprocess_exec(sys.executable, "-m", "slipstream_proxy.control.run.worker", env=env)
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


async def test_a_socket_that_is_removed_or_replaced_is_made_again(make_plane, monkeypatch, caplog):
    monkeypatch.setattr(worker, "SOCKET_EVERY", 0.05)
    plane = await make_plane()
    await plane.control.serve()
    path = plane.config.socket

    async def answers() -> bool:
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
                session.get("http://localhost/internal/healthz") as r,
            ):
                return r.status == 200
        except aiohttp.ClientError:
            return False

    path.unlink()
    await until(answers)
    path.unlink()
    path.write_text("another's")
    await until(answers)
    assert caplog.text.count("removed or replaced") == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_second_control_plane_touches_nothing(tmp_path, engine, monkeypatch):
    monkeypatch.setattr(worker, "OWN_PATIENCE", 0.1)
    config = make_config(tmp_path, engine)
    config.root.mkdir()
    config.socket.write_text("the first one's")
    first = await worker.own(config.root)
    with pytest.raises(StartError, match="another control plane"):
        await worker.run(config)
    assert config.socket.read_text() == "the first one's"
    assert not config.spool_dir.exists()
    os.close(first)
    os.close(await worker.own(config.root))


async def test_nobody_else_reads_what_a_control_plane_writes(make_plane, tmp_path):
    """But an engine, which may be another user, reads adapters."""
    before = os.umask(0o022)
    try:
        plane = await make_plane()
        folder = write_adapter(tmp_path / "mine")
        await plane.call("e1", text="words", done=True)
        await plane.seen("e1")
        form = aiohttp.FormData()
        form.add_field("adapter", json.dumps({"path": "tiny@1"}), content_type="application/json")
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            form.add_field(name, (folder / name).read_bytes(), filename=name)
        reply = await plane.client.post(API + "/adapters?wait=30", data=form, headers=plane.as_())
        assert reply.status == 201
        root, adapters = plane.config.root, plane.config.adapters_dir
        for path in root.rglob("*"):
            open_ = stat.S_IMODE(path.stat().st_mode) & 0o077
            assert bool(open_) is path.is_relative_to(adapters), (path, oct(open_))
        assert stat.S_IMODE(root.stat().st_mode) == 0o711
        assert stat.S_IMODE((adapters / "tiny@1" / "adapter_model.safetensors").stat().st_mode) == 0o644
    finally:
        os.umask(before)
