"""What comes back through aiohttp when an engine behaves badly, and which fields go on."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.dataplane import post

from slipstream_proxy.data.wire.replies import end_to_end
from slipstream_proxy.data.wire.request import forwardable

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ASK = {"model": "tiny", "input": "x"}


@pytest.fixture
async def raw():
    """``await raw(answer)`` → URL of a server that answers each request with these bytes and closes."""
    servers = []

    async def make(answer: bytes) -> str:
        async def run(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        servers.append(await asyncio.start_server(run, "127.0.0.1", 0))
        return "http://127.0.0.1:%d" % servers[-1].sockets[0].getsockname()[1]

    yield make
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (HEAD + b"content-length: 2\r\n\r\n{}", 200),
        (HEAD + b"content-length: 500\r\n\r\n{}", 502),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", 502),
        (b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}", 502),
        (b"HTTP/1.1 000 Odd\r\ncontent-length: 2\r\n\r\n{}", 502),
        (HEAD + b"vary: \x1b[31m\r\ncontent-length: 2\r\n\r\n{}", 200),
        (HEAD + b"vary: 1\r\netag: 2\r\nconnection: vary\r\ncontent-length: 2\r\n\r\n{}", 200),
        (b"rubbish\r\n\r\n", 503),
    ],
)
async def test_what_a_broken_engine_says(start, raw, answer, status):
    proxy = await start(engine={"urls": [await raw(answer)]})
    got, headers, _ = await post(proxy.url, ASK, path="/v1/embeddings")
    assert got == status and "vary" not in headers and ("etag" in headers) == (b"etag" in answer)


def test_fields_of_a_connection_stay_on_it():
    assert dict(end_to_end({"Connection": "close, X-Hop", "x-hop": "1", "X-A": "1", "Odd ": "2"})) == {"X-A": "1"}
    _, _, lines = forwardable([(b"Connection", b"X-Hop, close"), (b"x-hop", b"1"), (b"X-A", b"1")])
    assert lines == [b"X-A: 1\r\n"]
