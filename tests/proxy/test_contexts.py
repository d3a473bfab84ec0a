"""How long an engine's context is, when the engine does not say it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from slipstream_proxy.data.call.contexts import ContextLengths, ResponseFields


def refused() -> str:
    """A port where nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"rubbish",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"data":[1]}',
    ],
)
async def test_whoever_waits_is_told_that_it_did_not_say(answer):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = refused() if answer is None else f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    contexts, told = ContextLengths(None, 5.0), asyncio.Event()
    assert contexts.of(url, told.set) is None
    async with asyncio.timeout(30):
        await told.wait()
    assert contexts.of(url, told.set) == 0
    server.close()


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        (b'{"responses": {"function": ["type", "name"]}}', {"function": ["type", "name"]}),
        (b'{"packed": 1}', {}),
        (b'{"responses": {"function": 3}}', {}),
        (b'{"responses": [3]}', {}),
    ],
)
async def test_an_engine_says_the_fields_of_its_responses(said, fields):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /slipstream ")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    known, told = ResponseFields(None, 5.0), asyncio.Event()
    assert known.of(url, told.set) is None
    async with asyncio.timeout(30):
        await told.wait()
    assert known.of(url, told.set) == fields
    server.close()
