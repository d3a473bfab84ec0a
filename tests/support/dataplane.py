"""A data plane in a test's own event loop, and how tests speak with it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import aiohttp
from aiohttp import web
from tests.support import until

from slipstream.config import Config
from slipstream_proxy.data.call.steps.conversation import Conversation
from slipstream_proxy.data.call.steps.replays import Replays
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.data.server.listener import sweep
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.log.records import CallHead
from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.redaction import Redaction

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi ✓"}]}


NEVER = re.compile(rb"(?!)")


STATE = {
    "models": {
        "tiny": {
            "base": "tiny",
            "live": "tiny@2",
            "arms": [["tiny@1", "control", 0.25]],
        }
    },
    "engines": [
        {"url": "http://a", "ok": True, "loaded": ["tiny@1", "tiny@2"]},
        {"url": "http://b", "ok": True, "loaded": ["tiny@2"]},
    ],
}


class Proxy:
    """A data plane in the test's own event loop."""

    def __init__(self, config: Config) -> None:
        self.config = config

    async def start(self) -> Proxy:
        self.plane = Plane(self.config)
        if self.config.engine.kind != "auto":  # it has said already that it has none of its own
            self.plane.live.sampling_known = True
        self.server = self.plane.make_server()
        sock = socket.create_server(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.listener = await asyncio.get_running_loop().create_server(self.server, sock=sock)
        self.tasks = [
            asyncio.create_task(self.plane.link.follow()),
            asyncio.create_task(sweep(self.server, self.plane.pools)),
        ]
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
        await until(lambda: len(self.frames()) >= count)
        return self.frames()


async def post(url, body, path="/v1/chat/completions", headers=None, **kw):
    async with aiohttp.ClientSession() as session:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with session.post(
            url + path, data=data, headers={"content-type": "application/json", **(headers or {})}, **kw
        ) as reply:
            return reply.status, reply.headers, await reply.read()


def parsed(frame):
    head = CallHead(**frame.head)
    return head, BY_NAME[head.dialect].parse(frame.request, frame.reply, head)


async def read_request(reader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def send(port: int, *parts: bytes, eof: bool = False, until: bytes = b"") -> bytes:
    """Everything that comes back until the server closes, or up to ``until``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0)
    if eof:
        writer.write_eof()
    async with asyncio.timeout(30):
        got = await (reader.readuntil(until) if until else reader.read())
    writer.close()
    return got


def sent(headers: dict[str, str]) -> dict[str, str]:
    """What the engine gets of a head, but for the call's own id."""
    return {k.lower(): v for k, v in headers.items() if k.lower() != "x-request-id"}


class FakeControlSocket:
    """The control plane's socket, as far as the data plane talks to it."""

    def __init__(self, path):
        self.path, self.pins, self.uploads, self.told = path, [], [], 0
        self.state, self.changed = STATE, asyncio.Event()

    async def start(self):
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/internal/live", self.live)
        app.router.add_post("/internal/pins", self.pin)
        app.router.add_get("/internal/metrics", self.metrics)
        app.router.add_route("*", "/{path:.*}", self.any)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        await web.UnixSite(self.runner, str(self.path)).start()
        return self

    async def live(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(json.dumps(self.state).encode() + b"\n{}\n")
            self.changed.clear()
            await self.changed.wait()

    async def pin(self, request):
        asked = await request.json()
        self.pins += asked
        self.told += not asked
        return web.json_response([{"adapter": "tiny@1", "arm": "control"}] * len(asked))

    async def metrics(self, request):
        return web.Response(
            text="# TYPE x_total counter\nx_total 3\n# TYPE slipstream_in_flight gauge\nslipstream_in_flight 9\n"
        )

    async def any(self, request):
        self.uploads.append((request.path, dict(request.headers), len(await request.read())))
        ended = {"x-slipstream-done": "true"} if request.path.endswith("/done") else None
        return web.json_response({"ok": True}, headers=ended)


def forget_replays(plane: Plane) -> None:
    """Idempotent calls are sent to the engine again."""
    for step in plane.services.steps.recorded:
        if isinstance(step, Replays):
            step.__init__()  # type: ignore[misc]


def redact_with(plane: Plane, redact) -> None:
    """``redact`` in place of ``proxy.redact``, wherever the plane asks it."""
    redaction = Redaction(redact, b"secret")
    plane.services.recorder._redact = plane.services.redaction = redaction
    plane.metrics._redaction = redaction
    for step in plane.services.steps.request:
        if isinstance(step, Conversation):
            step._redaction = redaction


GOOD = json.dumps(ASK).encode()


PLAIN = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


LAST = PLAIN + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(GOOD), GOOD)
