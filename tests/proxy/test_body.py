"""Bodies that come through aiohttp: their size and their slowness have limits on every route."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from tests.support.dataplane import send

from slipstream_proxy.data.routes import body as module

PATHS = [
    (b"/v1/chat/completions", b"application/json"),
    (b"/v1/embeddings", b"application/json"),
    (b"/v1/audio/transcriptions", b"multipart/form-data; boundary=x"),
]


@pytest.fixture
async def reading():
    """An engine that reads a body before it answers; ``got`` are the bodies that came whole."""
    got: list[tuple[str, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        got.append((request.content_type, await request.read()))
        return web.json_response({"text": "ok"})

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{path:.*}", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", got
    await runner.cleanup()


def head(path: bytes, kind: bytes, length: bytes = b"Transfer-Encoding: chunked") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\n%b\r\n\r\n" % (path, kind, length)


@pytest.mark.parametrize(("path", "kind"), PATHS)
async def test_chunked_bodies_have_a_limit(start, reading, path, kind):
    url, got = reading
    proxy = await start(engine={"urls": [url]}, proxy={"body_limit": 2000})
    reply = await send(proxy.port, head(path, kind) + b"bb8\r\n" + b"x" * 3000 + b"\r\n0\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 413") and not got


@pytest.mark.parametrize(("path", "kind"), PATHS)
async def test_a_chunked_body_that_drips_is_ended(start, reading, monkeypatch, path, kind):
    """Each byte in time, but never the whole."""
    monkeypatch.setattr(module, "MIN_RATE", 1e6)
    url, got = reading
    proxy = await start(engine={"urls": [url]}, proxy={"header_timeout": 0.3})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(head(path, kind))
    answer = asyncio.create_task(reader.readuntil(b"\r\n"))
    for _ in range(2000):
        if answer.done():
            break
        writer.write(b"1\r\n \r\n")
        await asyncio.sleep(0.02)
    async with asyncio.timeout(60):
        assert (await answer).startswith(b"HTTP/1.1 408")
    writer.close()
    assert not got


async def test_what_is_no_json_is_streamed_through(start, reading):
    url, got = reading
    proxy = await start(engine={"urls": [url]})
    length = b"Content-Length: 300000\r\nConnection: close"
    reply = await send(proxy.port, head(b"/v1/audio/transcriptions", b"audio/wav", length) + b"w" * 300_000)
    assert reply.startswith(b"HTTP/1.1 200") and got == [("audio/wav", b"w" * 300_000)]


@pytest.mark.parametrize(("path", "kind"), PATHS)
async def test_a_length_above_the_limit_is_refused_before_the_body_comes(start, reading, path, kind):
    """Also where aiohttp reads the request, as it does with a field that names a time."""
    url, got = reading
    proxy = await start(engine={"urls": [url]}, proxy={"body_limit": 2000})
    for more in (b"", b"\r\nDate: Sun, 22 Nov 2026 18:28:03 GMT\r\nExpect: 100-continue"):
        async with asyncio.timeout(10):  # far less than header_timeout
            reply = await send(proxy.port, head(path, kind, b"Content-Length: 222222222222" + more), until=b"\r\n")
        assert reply.startswith((b"HTTP/1.1 413", b"HTTP/1.1 100")) and not got
