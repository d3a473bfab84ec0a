from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.proxy.fake_engine import FakeEngine

from slipstream.config import Config
from slipstream_proxy.data.listener import sweep
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.data.server import make_server
from slipstream_proxy.segments import list_segments, read_segment

settings.register_profile("proxy", derandomize=True, deadline=None)
settings.load_profile("proxy")


class Proxy:
    """A data plane in the test's own event loop."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def start(self) -> Proxy:
        self.plane = Plane(self.config)
        self.server = make_server(self.plane)
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.listener = await asyncio.get_running_loop().create_server(self.server, sock=sock)
        self.tasks = [asyncio.create_task(self.plane.link.follow()), asyncio.create_task(sweep(self.server))]
        return self

    async def stop(self) -> None:
        self.listener.close()
        for task in self.tasks:
            task.cancel()
        await self.server.shutdown(0.1)
        await self.plane.close()

    def frames(self) -> list[Any]:
        found = []
        for segments in list_segments(self.config.spool_dir).values():
            for _, path in segments:
                found += list(read_segment(path))
        return found

    async def record(self, count: int = 1) -> list[Any]:
        """The spool's frames, once there are so many."""
        await eventually(lambda: len(self.frames()) >= count)
        return self.frames()


async def eventually(check, timeout: float = 60.0) -> None:
    async with asyncio.timeout(timeout):
        while not check():
            await asyncio.sleep(0.01)


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
            engine = {"urls": [fake.url], "name": "tiny", **sections.pop("engine", {})}
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
