from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.support.dataplane import STATE, FakeControlSocket, Proxy
from tests.support.fake_engine import FakeEngine

from slipstream.config import Config

settings.register_profile("proxy", derandomize=True, deadline=None)
settings.load_profile("proxy")


@pytest.fixture
async def fake():
    engine = await FakeEngine().start()
    yield engine
    await engine.stop()


@pytest.fixture
async def start(tmp_path: Path, fake: FakeEngine):
    """``await start(proxy={…}, models={…})``: a data plane in front of the fake engine."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**sections: Any) -> Proxy:
            engine = {"urls": [fake.url], "name": "tiny", "kind": "vllm", **sections.pop("engine", {})}
            proxy = {"durability": "process", **sections.pop("proxy", {})}
            config = Config(data_dir=str(tmp_path / "data"), engine=engine, proxy=proxy, **sections)
            made = await Proxy(config).start()
            stack.push_async_callback(made.stop)
            return made

        yield make


@pytest.fixture
async def serve():
    """``await serve(handler)`` → URL of a raw server; ``handler(reader, writer)`` runs for each connection."""
    servers, tasks = [], set()

    async def make(handler):
        async def run(reader, writer):
            task = asyncio.current_task()
            tasks.add(task)
            try:
                await handler(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()
                tasks.discard(task)

        server = await asyncio.start_server(run, "127.0.0.1", 0)
        servers.append(server)
        return "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]

    yield make
    for server in servers:
        server.close()
    for task in list(tasks):
        task.cancel()


@pytest.fixture
async def control(tmp_path, fake):
    (tmp_path / "data").mkdir()
    fake.models |= {"tiny@1", "tiny@2"}
    made = FakeControlSocket(tmp_path / "data" / "control.sock")
    both = ["tiny@1", "tiny@2"]
    made.state = {**STATE, "engines": [{"url": fake.url, "ok": True, "loaded": both}]}
    yield await made.start()
    await made.runner.cleanup()
