"""An engine's reply while it arrives."""

from __future__ import annotations

import pytest

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
    reply.parts = [b"a" * 100]
    assert reply.body() is reply.parts[0]
    reply.parts.append(b"b")
    assert reply.body() == b"a" * 100 + b"b"
