"""The request path under hostile bytes, whatever way they are cut: an answer or a closed connection, never a request that was not sent, and
the same on the fast way as on aiohttp's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from functools import partial

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.dataplane import GOOD, LAST, NEVER, PLAIN, forget_replays, sent

from slipstream_proxy.data.server import connection

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


async def send(port: int, pieces: list[bytes], *, eof: bool = True) -> bytes:
    """What comes back until the server closes; without ``eof`` it does that behind the last of the requests that ask for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if eof:
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


# --- the fast way against aiohttp's own -----------------------------------------------------------------------------

LENGTHS = [
    b"%d", b"%016d", b"%040d", b" %d", b"%d ", b"\t%d\t", b"+%d", b"-%d", b"0x%x", b"%d,%d", b"%d.0", b"%d_0", b"\x0b%d", b"\xa0%d", b"%d;",
]  # fmt: skip
FIELDS = [
    b"X-A: b", b"X-A:b", b"X-A:\t b \t", b"x-a: b", b"X-A: \xc3\xbc\xff", b"X-A: ", b"X-A:", b"X-A: b\x01", b"X-A: b\x7f", b"X-A: b\x1b[0m", b"X-A: \0", b"X-A : b", b"X A: b",
    b"X-\xc3: b", b": b", b"X-A", b" X-A: b", b"X-A: b\rc", b"X-A: b\nc", b"X-A: b\r", b"Connection: keep-alive", b"connection: Keep-Alive", b"Connection: X-A, keep-alive",
    b"Authorization: Bearer a", b"Authorization: Basic eDp5", b"x-slipstream-episode: e1", b"X-Slipstream-Episode: e2", b"x-slipstream-task: t", b"x-slipstream-split: eval",
    b"x-slipstream-split: no", b"x-slipstream-tag-a: \xc3\xbc", b"x-slipstream-tag-a: \x85", b"x-slipstream-tag-\x7f: a", b"x-slipstream-done: 1", b"Cookie: a=b", b"Host: other",
    b"Content-Encoding: gzip", b"Content-Encoding: identity", b"Accept-Encoding: gzip", b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"TE: trailers", b"Trailer: x",
    b"Expect: 100-continue", b"Idempotency-Key: k", b"x-stainless-retry-count: 2", b"traceparent: x", b"Origin: http://localhost:1", b"Origin: http://evil.example", b"Keep-Alive: 5",
]  # fmt: skip


@st.composite
def near_misses(draw):
    """Requests as the fast way takes them, and such as it must not."""
    body = draw(
        st.sampled_from([GOOD, b"{}", b"", b"{", PLAIN + b"Content-Length: 2\r\n\r\n{}", b"2\r\n{}\r\n0\r\n\r\n"])
    )
    number = len(body) + draw(st.sampled_from([0, 0, 0, 0, -1, 1]))
    form = draw(st.sampled_from(LENGTHS)) if draw(st.booleans()) else b"%d"
    length = form.replace(b"%d,%d", b"%d,%%d" % number) % max(number, 0)
    lines = [
        *draw(st.lists(st.sampled_from(FIELDS), max_size=3)),
        *[b"Content-Length: " + length] * draw(st.sampled_from([1, 1, 1, 1, 1, 0, 2])),
    ]
    start = draw(
        st.sampled_from(
            [PLAIN] * 6
            + [
                PLAIN.replace(b"POST", b"\r\nPOST"),
                PLAIN.replace(b"1.1", b"1.0"),
                b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n",
            ]
        )
    )
    return start + b"".join(line + b"\r\n" for line in draw(st.permutations(lines))) + b"\r\n" + body


HIDDEN = PLAIN + b"Content-Length: %040d\r\n\r\n%b" % (len(PLAIN) + 23, PLAIN + b"Content-Length: 2\r\n\r\n{}")


async def both_ways(proxy, fake, talk):
    """What ``talk`` says and what the engine gets, on the fast way and on aiohttp's own."""
    found = []
    for line in (connection._LINE, NEVER):
        fake.seen.clear()
        fake.raw.clear()
        forget_replays(proxy.plane)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "_LINE", line)
            said = await talk()
        found.append((said, fake.raw[:], [sent(headers) for _, headers in fake.seen]))
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(near_misses(), min_size=1, max_size=3), cuts=st.lists(st.integers(0, 900), max_size=4))
@example(asked=[HIDDEN], cuts=[])
@example(asked=[HIDDEN, HIDDEN], cuts=[60, 200])
async def test_both_ways_read_the_same(proxy_for_all, asked, cuts):
    proxy, fake = proxy_for_all
    text = b"".join([*asked, LAST.replace(b"close", b"keep-alive"), LAST])
    points = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in zip(points, points[1:], strict=False) if a < b]

    async def talk() -> list[bytes]:
        return re.findall(rb"HTTP/1\.[01] (\d+)", await send(proxy.port, pieces, eof=False))

    (fast, raw, seen), (slow, slow_raw, slow_seen) = await both_ways(proxy, fake, talk)
    if slow[-1:] == [b"400"]:
        # aiohttp forgets what it read before a malformed request if both came in one read: there may be fewer, and no others
        assert fast[-1:] == [b"400"] and raw[: len(slow_raw)] == slow_raw and seen[: len(slow_seen)] == slow_seen
    else:
        assert (fast, raw, seen) == (slow, slow_raw, slow_seen), (asked, cuts)


async def converse(port: int, asked: list[bytes]) -> list[bytes]:
    """The status of each request's reply, the next sent behind it; what is said beyond them or not said at all is told, too."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said: list[bytes] = []
    try:
        for text in asked:
            writer.write(text)
            status = b"100"
            while status == b"100":
                async with asyncio.timeout(60):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status = head.split()[1]
                    said.append(status)
                    if status != b"100":
                        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    except (asyncio.IncompleteReadError, ConnectionError):
        said.append(b"closed")
    writer.close()
    return said


VARIANTS = [
    *(PLAIN + line + b"\r\nContent-Length: %d\r\nX-Last: 1\r\n\r\n" % len(GOOD) + GOOD for line in FIELDS),
    *(PLAIN + b"Content-Length: %d\r\n" % len(GOOD) + line + b"\r\n\r\n" + GOOD for line in FIELDS),
    *(PLAIN + b"Content-Length: " + form.replace(b",%d", b",%%d") % len(GOOD) + b"\r\nX-Last: 1\r\n\r\n" + GOOD for form in LENGTHS),
    *(PLAIN + b"Content-Length: %d\r\n" % len(GOOD) + b"Content-Length: %d\r\n\r\n" % n + GOOD for n in (0, len(GOOD))),
    HIDDEN,
]  # fmt: skip


@pytest.mark.parametrize("number", range(4))
async def test_each_oddity_alone_and_behind_a_head_that_is_nearly_the_same(proxy_for_all, number):
    proxy, fake = proxy_for_all
    plain = PLAIN + b"Content-Length: %d\r\nX-Last: 1\r\n\r\n" % len(GOOD) + GOOD
    for odd in VARIANTS[number::4]:
        for asked in ([odd, odd, plain], [plain, odd, plain]):
            fast, slow = await both_ways(proxy, fake, partial(converse, proxy.port, asked))
            assert fast == slow, asked
