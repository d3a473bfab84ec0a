"""The request path under hostile bytes, whatever way they are cut: an answer or a closed connection, and never a request that was not sent."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.proxy.test_relay import ASK

GOOD = json.dumps(ASK).encode()
LINES = st.sampled_from([
    b"Content-Length: %d" % len(GOOD), b"Content-Length: 0", b"Content-Length: -1", b"Content-Length: 5, 5", b"content-length:5", b"Content-Length : 5",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"transfer-encoding:\tchunked", b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding : chunked", b" folded: yes", b"\tfolded", b"X-A: b\rc", b"X-A: b\nc", b"X-A: \0", b"no colon", b": empty", b"X-\xff: a", b"X-A: \xff",
    b"Expect: 100-continue", b"Upgrade: websocket", b"Connection: Upgrade", b"Connection: close", b"Content-Encoding: gzip", b"Content-Encoding: br",
    b"x-slipstream-episode: a b", b"x-slipstream-episode: e\x7f", b"x-slipstream-auth: {}", b"Content-Type: application/json", b"Host: other",
])  # fmt: skip
TARGETS = st.sampled_from([
    b"/v1/chat/completions", b"/v1/messages", b"/v1/responses", b"/e/x/v1/chat/completions", b"/e/../v1/chat/completions", b"//v1/chat/completions",
    b"/v1/chat/completions?a=b", b"/v1/embeddings", b"/sleep", b"/v1/load_lora_adapter", b"/%76%31/load_lora_adapter", b"*", b"http://x/v1/chat/completions",
])  # fmt: skip
STARTS = st.sampled_from([b"POST %b HTTP/1.1", b"POST %b HTTP/1.0", b"POST  %b HTTP/1.1", b"post %b HTTP/1.1", b"GET %b HTTP/1.1", b"POST %b HTTP/9.9", b"POST %b", b"\0 %b HTTP/1.1"])  # fmt: skip
BODIES = st.one_of(
    st.sampled_from([GOOD, b"", b"{", b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD), b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"0\r\n\r\nPOST /sleep HTTP/1.1\r\n\r\n"]),
    st.binary(max_size=40),
)  # fmt: skip


@st.composite
def requests(draw):
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    lines = [draw(STARTS) % draw(TARGETS), b"Host: localhost", *draw(st.lists(LINES, max_size=4))]
    return end.join(lines) + end + end + draw(BODIES)


def ambiguous(request: bytes) -> bool:
    """Its length can be read in two ways, or its head in two ways."""
    head = request.partition(b"\r\n\r\n")[0].lower()
    lengths = head.count(b"\r\ncontent-length")
    return (
        lengths > 1
        or (lengths and b"\r\ntransfer-encoding" in head)
        or b"\r\n folded" in head
        or b"\r\n\tfolded" in head
    )


async def send(port: int, pieces: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        writer.write_eof()
        async with asyncio.timeout(60):
            got = await reader.read()
    writer.close()
    return got


@pytest.fixture
async def proxy_for_all(start, fake):
    return await start(proxy={"header_timeout": 5.0}), fake


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=requests(), second=st.one_of(st.just(b""), requests()), cuts=st.lists(st.integers(0, 400), max_size=4))
async def test_requests(proxy_for_all, first, second, cuts):
    proxy, fake = proxy_for_all
    fake.seen.clear()
    fake.raw.clear()
    text = first + second
    points = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    got = await send(proxy.port, [text[a:b] for a, b in zip(points, points[1:], strict=False) if a < b])
    assert not got or got.startswith(b"HTTP/1.")
    assert b"the proxy failed" not in got and b"500 Internal" not in got
    assert len(fake.raw) <= text.count(b"POST") + text.count(b"post")
    for body, headers in fake.seen:
        assert isinstance(body, dict) and not [n for n in headers if n.lower().startswith("x-slipstream-")]
    if ambiguous(first):
        assert not fake.seen and (not got or got.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 100")))
