"""Clients that do not read."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from tests.support import until
from tests.support.dataplane import ASK, read_request

from slipstream_proxy.data.wire.backpressure import StalledClients

LINE = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("path", "way", "outcomes"),
    [
        (b"/v1/chat/completions", b"", ["aborted"]),
        (b"/v1/chat/completions", b"Connection: close\r\n", ["aborted"]),
        (b"/v1/audio/speech", b"", []),
    ],
    ids=["fast", "aiohttp", "passed"],
)
async def test_a_client_that_never_reads_does_not_keep_the_engine(start, serve, path, way, outcomes):
    gone = asyncio.Event()

    async def flood(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        try:
            while True:
                writer.write(b"data: " + b"x" * 60_000 + b"\n\n")
                await writer.drain()
        finally:
            gone.set()

    proxy = await start(engine={"urls": [await serve(flood)]}, proxy={"client_timeout": 0.5})
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", proxy.port))
    body = json.dumps({**ASK, "stream": True}).encode()
    await loop.sock_sendall(client, LINE % path + way + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    async with asyncio.timeout(60):
        await gone.wait()
    await until(lambda: not proxy.plane.services.in_flight and not proxy.server.connected)
    if outcomes:
        assert [frame.head["outcome"] for frame in await proxy.record()] == outcomes
    client.close()


@pytest.mark.parametrize("way", [b"", b"Connection: close\r\n"], ids=["fast", "aiohttp"])
@pytest.mark.parametrize("stays", [True, False])
async def test_a_large_reply_waits_for_a_slow_client_in_a_file(start, serve, way, stays):
    said = ("w" * 97 + "ör ") * 60_000
    whole = {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": said}}]}
    answer = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()

    async def reply(reader, writer):
        while True:
            await read_request(reader)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(answer) + answer)
            await writer.drain()

    proxy = await start(engine={"urls": [await serve(reply)]})
    rests = proxy.plane.state.rests
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", proxy.port))
    body = json.dumps(ASK).encode()
    request = LINE % b"/v1/chat/completions" + way + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    await loop.sock_sendall(client, request * (1 if way else 2))
    await until(lambda: len(rests) == 1)
    (rest,) = rests._held
    assert rest._data == answer
    rests.check(loop.time() + 2.0)
    await until(lambda: not rest._data)
    reader, writer = await asyncio.open_connection(sock=client)
    for _ in range((1 if way else 2) if stays else 0):  # what was sent ahead is answered behind it
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert int(head.partition(b"content-length: ")[2].partition(b"\r")[0]) == len(answer)
        assert await reader.readexactly(len(answer)) == answer
    if stays and way:
        assert await reader.read() == b""
    writer.close()
    await until(lambda: not len(rests) and not proxy.server.connected)
    assert list(proxy.config.root.glob("tmp*")) == []


class Waiting:
    """A transport, as far as this asks it."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = iter(sizes)

    def get_write_buffer_size(self) -> int:
        return next(self.sizes)

    def get_extra_info(self, name: str) -> None:
        return None


def test_who_takes_a_byte_now_and_then_stays():
    slow, stuck, quick = Waiting(9, 9, 8, 8, 20, 20, 20), Waiting(*[9] * 7), Waiting(9, 0, 9, 0, 9, 9, 0)
    stalled = StalledClients(2.0)
    ended = [stalled.ended([slow, stuck, quick, None], float(now)) for now in range(7)]  # type: ignore[list-item]
    assert [e == [] for e in ended[:3]] == [True] * 3 and ended[3] == [stuck]  # type: ignore[comparison-overlap]
    assert all(slow not in e for e in ended[:5]) and slow in ended[5] and not any(quick in e for e in ended)  # type: ignore[comparison-overlap]
