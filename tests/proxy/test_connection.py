"""The fast way against aiohttp's own, for the same bytes: what the engine and the client get must not tell which way was taken."""

from __future__ import annotations

import asyncio
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dataplane import ASK, NEVER, sent
from tests.support.dialects import CHAT

from slipstream_proxy.data.server import connection
from slipstream_proxy.data.server.connection import ClientConnection
from slipstream_proxy.data.wire.http1 import RepeatedHead
from slipstream_proxy.data.wire.identity import split_path
from slipstream_proxy.data.wire.request import LONGEST_EPISODE, Fields, RepeatedRequest, RequestHead, parse_fields
from slipstream_proxy.keys import Keys

VARYING = re.compile(
    rb"x-slipstream-call: [^\r]*\r\n|x-slipstream-episode: ep-[^\r]*\r\n|(?:date|server): [^\r]*\r\n", re.IGNORECASE
)


def only_aiohttp(monkeypatch) -> None:
    """No request line is one for the fast way any more."""
    monkeypatch.setattr(connection, "_LINE", NEVER)
    monkeypatch.setattr(connection, "_lines", {})


def request(headers: list[tuple[str, str]], body: bytes, path: str = "/v1/chat/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers), f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


async def replies(port: int, pieces: list[bytes], count: int) -> list[tuple[bytes, frozenset[bytes], bytes]]:
    """Status line, header lines and body of ``count`` replies to what is sent in ``pieces``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    found = []
    async with asyncio.timeout(60):
        for _ in range(count):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"chunked" in head:
                body = b""
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    body += await reader.readexactly(size)
                    await reader.readexactly(2)
                await reader.readexactly(2)
            else:
                body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            status, *lines = VARYING.sub(b"", head).split(b"\r\n")
            found.append((status, frozenset(line.lower() for line in lines if line), body))
    writer.close()
    return found


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    points = [0, *sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3)))), len(data)]
    return [data[a:b] for a, b in zip(points, points[1:], strict=False) if b > a]


def some_requests(rng: random.Random) -> list[bytes]:
    """Requests as one client sends them: mostly with the same head, then with another tag, key, format or length."""
    made = []
    headers = [("Host", "localhost"), ("Content-Type", "application/json"), ("User-Agent", "x/1"), ("X-Custom", "kept")]
    for _ in range(rng.randrange(2, 7)):
        more = list(headers)
        if rng.random() < 0.7:
            more.append(("x-slipstream-episode", rng.choice(("a", "b"))))
        if rng.random() < 0.3:
            more += [("x-slipstream-tag-team", "blue"), ("x-slipstream-task", "t1")]
        if rng.random() < 0.2:
            more.append(("X-SLIPSTREAM-SPLIT", rng.choice(("eval", "off", "nonsense"))))
        if rng.random() < 0.2:
            more.insert(rng.randrange(len(more)), ("Authorization", "Bearer sk-x"))
        ask = {**ASK, "messages": [{"role": "user", "content": "ü" * rng.choice((1, 10, 5000))}]}
        ask |= rng.choice(({}, {"stream": True}, {"n": 2}, {"logprobs": True}, {"model": "nope"}, {"model": "gpt-4o"}))  # type: ignore[arg-type]
        if rng.random() < 0.2:
            ask["metadata"] = rng.choice(({"slipstream_episode": "m", "own": "1"}, {"own": "2"}))  # type: ignore[arg-type]
        body = json.dumps(ask, ensure_ascii=rng.random() < 0.5).encode() if rng.random() < 0.9 else b"{"
        path = rng.choice(("/v1/chat/completions",) * 3 + ("/e/e9/v1/chat/completions", "/v1/chat/completions?a=b"))
        made.append(request(more, body, path))
        if rng.random() < 0.5:
            made.append(made[-1])
    return made


@pytest.mark.parametrize("seed", range(12))
async def test_both_ways_say_the_same(start, fake, monkeypatch, seed):
    rng = random.Random(seed)
    proxy = await start(models={"gpt-4*": {"trained": "tiny"}})
    asked = some_requests(rng)
    pieces = cut(b"".join(asked), rng)
    fast = await replies(proxy.port, pieces, len(asked))
    seen, raw = fake.seen[:], fake.raw[:]
    fake.seen.clear()
    fake.raw.clear()
    only_aiohttp(monkeypatch)
    assert proxy.server.requests_count == 0
    slow = await replies(proxy.port, pieces, len(asked))
    assert proxy.server.requests_count == len(asked)
    assert fast == slow
    assert raw == fake.raw
    assert [sent(headers) for _, headers in seen] == [sent(headers) for _, headers in fake.seen]


async def test_the_fast_way_is_taken(start, fake, monkeypatch):
    def never(*_):
        raise AssertionError("aiohttp's parser was asked")

    proxy = await start()
    monkeypatch.setattr(ClientConnection, "_go_slow", never)
    asked = request([("Host", "localhost"), ("Content-Type", "application/json")], json.dumps(ASK).encode())
    more = request([("Host", "localhost"), ("Content-Type", "application/json")], json.dumps({**ASK, "n": 2}).encode())
    found = await replies(proxy.port, [asked, asked + more, asked], 4)
    assert [status for status, _, _ in found] == [b"HTTP/1.1 200 OK"] * 4
    assert [body.get("n") for body, _ in fake.seen] == [None, None, 2, None]


async def test_a_known_head_is_asked_for_its_key_each_time(start, fake, tmp_path):
    """What is remembered of a head is how it reads, and not whether it may come in."""
    keys = Keys(tmp_path / "data" / "keys.json")
    key_id, secret = keys.add("a", ["inference"])
    keys.add("b", ["inference"])
    proxy = await start()
    asked = request([("Host", "localhost"), ("Authorization", f"Bearer {secret}")], json.dumps(ASK).encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)

    async def status() -> bytes:
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        return head.split()[1]

    assert [await status(), await status()] == [b"200", b"200"]
    keys.revoke(key_id)
    proxy.plane.admission.keys._looked = 0.0
    assert await status() == b"401"
    writer.close()


@pytest.mark.parametrize("length", [b"9" * 30, b"9" * 5000, b"99999999999"])
async def test_lengths_beyond_all_bounds(start, fake, length):
    proxy = await start(proxy={"header_limit": 8192})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n{}")
    async with asyncio.timeout(60):
        got = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert got.startswith(b"HTTP/1.1 413") and b"connection: close" in got and not fake.seen


@pytest.mark.parametrize("way", ["fast", "aiohttp"])
async def test_leading_zeros_of_a_length_are_no_other_length(start, fake, monkeypatch, way):
    """Read as a shorter one, the body's rest would be a request that nobody sent."""
    if way == "aiohttp":
        monkeypatch.setattr(connection, "_LINE", NEVER)
    proxy = await start()
    inner = request([("Host", "localhost")], json.dumps({**ASK, "n": 2}).encode())
    for zeros in (1, 12, 16, 40):
        asked = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %b%d\r\n\r\n%b"
        asked %= (b"0" * zeros, len(inner), inner)
        after = request([("Host", "localhost")], BODY)
        (_, _, said), (status, _, _) = await replies(proxy.port, [asked + after], 2)
        assert b"no JSON" in said and status == b"HTTP/1.1 200 OK"
        assert fake.raw.pop(0) == inner and len(fake.raw) == 1
        fake.raw.clear()


async def test_a_body_that_drips_is_ended(start, fake, monkeypatch):
    """Each byte in time, but never the whole."""
    monkeypatch.setattr(connection, "MIN_RATE", 1e6)
    proxy = await start(proxy={"header_timeout": 0.3})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    answer = asyncio.create_task(reader.readuntil(b"\r\n"))
    for _ in range(1000):
        if answer.done():
            break
        writer.write(b" ")
        await asyncio.sleep(0.02)
    async with asyncio.timeout(60):
        assert (await answer).startswith(b"HTTP/1.1 408")
    writer.close()
    assert not fake.seen


GOOD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nX-Last: z\r\n\r\n"
BODY = json.dumps(ASK).encode()


@pytest.mark.parametrize(
    "second",
    [
        GOOD.replace(b"%d", b"%d\r\nContent-Length: 3") % len(BODY),
        GOOD.replace(b"%d", b"%d\r\nTransfer-Encoding: chunked") % len(BODY),
        GOOD.replace(b"%d", b"%d\r\n x") % len(BODY),
        GOOD.replace(b"%d", b"+%d") % len(BODY),
        GOOD.replace(b"%d", b"0x%x") % len(BODY),
        GOOD.replace(b"%d", b"%d ,5") % len(BODY),
        GOOD.replace(b"%d", b""),
        GOOD.replace(b"\r\nX-Last: z", b"\r\nX-Last: z\r\n folded") % len(BODY),
        GOOD.replace(b"X-Last: z", b"X-Last: z\nTransfer-Encoding: chunked") % len(BODY),
        GOOD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"zz\r\n",
    ],
    ids=range(10),
)
@pytest.mark.parametrize("way", ["fast", "aiohttp"])
async def test_smuggling_behind_a_good_request(start, fake, monkeypatch, second, way):
    """A head that nearly is the one before gets no further than any other."""
    if way == "aiohttp":
        only_aiohttp(monkeypatch)
    proxy = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(GOOD % len(BODY) + BODY)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.write(second + BODY)
    async with asyncio.timeout(60):
        got = await reader.read()
    writer.close()
    assert head.startswith(b"HTTP/1.1 200") and got.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert got.count(b"HTTP/1.") == 1 and len(fake.seen) == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"a: b", b"Content-Length: 5", b"content-length:\t77 ", b"X: Content-Length: 5"]), max_size=4
    ),
    st.integers(0, 10**14),
    st.binary(max_size=40),
)
def test_a_known_head_matches_itself_with_any_length_and_nothing_else(lines, length, tail):
    def text(lines: list[bytes]) -> bytes:
        return b"POST / HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"

    head = text(lines)
    known = RepeatedHead(head, 1)
    assert known.matches(head + tail) and known.end == len(head)
    places = [i for i, line in enumerate(lines) if line.lower().startswith(b"content-length")]
    if len(places) == 1:
        (place,) = places
        name, _, said = lines[place].partition(b":")

        def other(value: bytes) -> bytes:
            return text([*lines[:place], name + b":" + said.replace(said.strip(), value), *lines[place + 1 :]])

        assert known.length == int(said)
        varied = other(b"%d" % length)
        assert known.matches(varied + tail) and (known.length, known.end) == (length, len(varied))
        for bad in (b"-1", b"", b"1" * 40, b"1 2", b"1\r\n2"):
            assert not known.matches(other(bad) + tail)
    assert not known.matches(head[:-1])


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(st.from_regex(rb"[a-z0-9-]{1,140}", fullmatch=True), st.binary(max_size=6)),
    st.permutations([b"x-slipstream-episode: e-1", b"Content-Length: 5", b"x-slipstream-task: t", b"Host: h"]),
    st.sampled_from([[], [b"X-Slipstream-Episode: e-2"], [b"a: x-slipstream-episode: e"]]),
)
def test_a_known_head_takes_another_episode_as_its_parser_does(name, lines, more):
    def text(episode: bytes) -> bytes:
        said = [line.replace(b"e-1", episode) for line in [*lines, *more]]
        return b"POST / HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in said) + b"\r\n"

    def parsed(head: bytes) -> Fields | None:
        return parse_fields(head[head.index(b"\n") + 1 : -2])

    def told(head: RequestHead) -> tuple[dict[bytes, bytes], dict[bytes, bytes], bytes]:
        return {**head.headers, b"content-length": b""}, head.ours, head.block

    fields = parsed(text(b"e-1"))
    assert fields is not None
    known, other = RepeatedRequest(text(b"e-1"), RequestHead(split_path("/"), CHAT, fields)), text(name)
    expected = parsed(other)
    if known.takes(other + b"body"):
        assert expected is not None and known.end == len(other) and known.length == 5
        assert told(known.value) == told(RequestHead(split_path("/"), CHAT, expected))
    else:
        plain = name.replace(b"-", b"").isalnum() and len(name) < LONGEST_EPISODE
        first = lines.index(b"x-slipstream-episode: e-1") < lines.index(b"Content-Length: 5")
        assert more or not plain or not first
    assert not known.takes(other[:-1])
