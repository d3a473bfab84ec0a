"""An engine's reply while it arrives."""

from __future__ import annotations

import tracemalloc

import pytest
from tests.support.dataplane import ASK, post, read_request

from slipstream_proxy.data.call.reply import EngineReply
from slipstream_proxy.data.wire.http1 import ResponseHead

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("head", "stream"),
    [
        (SSE, True),
        (SSE.replace(b"200 OK", b"400 Bad Request"), False),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n", False),
    ],
)
def test_what_is_a_stream(head, stream):
    reply = EngineReply()
    reply.begin(ResponseHead(head), 5.0)
    assert reply.stream == stream == (reply.events is not None) and reply.first == 5.0


def test_the_end_of_a_stream():
    reply = EngineReply()
    reply.begin(ResponseHead(SSE), 1.0)
    reply.events.feed(b"data: {}\n\nda")
    assert reply.end(keep_tail=False) == (b"", "error")
    reply.terminal = True
    reply.held.append(b"data: [DONE]\n\n")
    assert reply.end(keep_tail=True) == (b"data: [DONE]\n\nda", "ok")


def test_the_body_is_joined_once():
    reply = EngineReply()
    assert (reply.body(), reply.count) == (b"", 0)
    part = b"a" * 100
    reply.add(part)
    assert reply.body() is part
    reply.add(b"b")
    reply.add(b"c")
    assert reply.body() == b"a" * 100 + b"bc" and reply.count == 3
    assert reply.body() is reply.body()


def test_a_large_body_is_held_once():
    part = b"x" * 2**18
    reply = EngineReply()
    tracemalloc.start()
    for _ in range(256):
        reply.add(bytes(bytearray(part)))
    body = reply.body()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(body) == 2**26 and peak < 1.3 * 2**26


ERROR = b'data: {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}\n\ndata: [DONE]\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
async def test_a_stream_in_which_the_engine_fails_is_an_error(start, serve, path):
    async def failing(reader, writer):
        await read_request(reader)
        writer.write(STREAM + ERROR)

    proxy = await start(engine={"urls": [await serve(failing)]})
    status, _, body = await post(proxy.url, {**ASK, "prompt": "x", "max_tokens": 5, "stream": True}, path=path)
    assert status == 200 and b"engine died" in body
    (frame,) = await proxy.record(1)
    assert (frame.head["outcome"], frame.head["status"]) == ("error", 200)
    assert any('outcome="error"' in str(key) or "error" in key for key in proxy.plane.metrics.calls)
