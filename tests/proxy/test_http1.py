"""Framing: whatever way the bytes are cut, the same comes out; rubbish raises RemoteProtocolError and nothing else."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.data.wire.http1 import GUARD_LINES, ChunkedBody, RemoteProtocolError, ResponseHead, chunk
from slipstream_proxy.dialects.base import EventCutter, event_data, stream_objects


def cut(data: bytes, at: list[int]) -> list[bytes]:
    points = [0, *sorted(a % (len(data) + 1) for a in at), len(data)]
    return [data[a:b] for a, b in zip(points, points[1:], strict=False)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6), CUTS, st.booleans(), st.binary(max_size=10), st.booleans()
)
def test_chunked_body(parts, cuts, trailers, rest, extension):
    text = b"".join(b"%X;a=b\r\n%b\r\n" % (len(p), p) if extension else chunk(p) for p in parts)
    text += b"0\r\n" + (b"x-sum: 1\r\n" if trailers else b"") + b"\r\n"
    body, got = ChunkedBody(), []
    pieces = cut(text, cuts)
    for i, piece in enumerate(pieces):
        got += body.feed(piece + (rest if i == len(pieces) - 1 else b""))
        assert body.done == (i == len(pieces) - 1) or not b"".join(pieces[i + 1 :])
        if body.done:
            break
    assert b"".join(got) == b"".join(parts) and body.done


@pytest.mark.parametrize("line", [b"1;" + b"x" * 1000, b"1" + b" " * 1000])
@pytest.mark.parametrize("size", [7, 1500, 10**6])
def test_chunk_extensions_have_a_limit(line, size):
    def feed(count):
        text, body = (line + b"\r\na\r\n") * count, ChunkedBody()
        for at in range(0, len(text), size):
            body.feed(text[at : at + size])

    feed(16)
    with pytest.raises(RemoteProtocolError, match="chunk extensions"):
        feed(17)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from(
                [b"5\r\nhello\r\n", b"0\r\n", b"\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"1 \r\n", b"\n"]
            ),
        ),
        max_size=8,
    )
)
def test_chunked_rubbish(pieces):
    """Read, or refused, however it is cut; and read as the grammar says."""
    whole = walked([b"".join(pieces)])
    assert walked(pieces) == whole
    if whole is not None and whole[1]:
        assert whole[:2] == (unchunked(b"".join(pieces)), True)


def walked(pieces):
    """Payload, whether the body ended and what stands behind it; None: malformed."""
    body, got = ChunkedBody(), b""
    try:
        for i, piece in enumerate(pieces):
            got += b"".join(body.feed(piece))
            if body.done:
                return got, True, body.rest + b"".join(pieces[i + 1 :])
    except RemoteProtocolError:
        return None
    return got, False, b""


def unchunked(text):
    """The payload of a whole body by RFC 9112's grammar, a chunk after the other."""
    got, size = b"", 1
    while size:
        m = re.match(rb"([0-9A-Fa-f]+)[ \t]*(?:;[^\r\n]*)?\r\n", text)
        assert m is not None
        size, text = int(m[1], 16), text[m.end() :]
        if size:
            got += text[:size]
            assert len(text) >= size + 2 and text[size : size + 2] == b"\r\n"
            text = text[size + 2 :]
    return got


@pytest.mark.parametrize(
    "text",
    [
        b"x\r\n",
        b"-1\r\na\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"1\r\nab\r\n",
        b"1\na\n",
        b"\r\n\r\n",
        b"10000000000000000\r\n",
        b"1_0\r\n",
    ],
)
def test_bad_chunks(text):
    with pytest.raises(RemoteProtocolError):
        ChunkedBody().feed(text)


def fed(reader: EventCutter, piece: bytes) -> list[bytes]:
    """As the relay asks it."""
    return [piece] if reader.single(piece) else reader.feed(piece)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text(alphabet=st.characters(exclude_characters="\r\n"), max_size=12), max_size=6),
    CUTS,
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_events_whatever_the_cuts(texts, cuts, end):
    events = [b"data: " + t.encode("utf-8", "surrogatepass") + end + end for t in texts]
    reader, got = EventCutter(), []
    for piece in cut(b"".join(events) + b"data: tail", cuts):
        got += fed(reader, piece)
    if end == b"\n":
        assert got == events and reader.tail == b"data: tail"
    else:  # where \r and \n arrive apart a blank line is seen early; nothing is lost
        assert b"".join(got) + reader.tail == b"".join(events) + b"data: tail"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b"data: {", b"}\n\n", b"\r", b"\n", b"\n\n\n", b'data: {"choices":[{"delta":1}]}\n\n']),
        ),
        max_size=10,
    )
)
def test_event_rubbish(pieces):
    reader, got = EventCutter(), b""
    for piece in pieces:
        for event in fed(reader, piece):
            got += event
            event_data(event)
    assert got + reader.tail == b"".join(pieces)
    list(stream_objects(b"".join(pieces)))


def sse(text: bytes) -> list[bytes]:
    """The data of each event of a whole stream: the specification's algorithm, line by line."""
    found, lines = [], []
    for line in text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]:
        if not line:
            if lines:
                found.append(b"\n".join(lines))
            lines = []
        elif line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
    return found


EVENT = st.lists(
    st.one_of(
        st.binary(max_size=12).map(lambda b: b"data: " + b.replace(b"\r", b"").replace(b"\n", b"")),
        st.sampled_from(
            [
                b"data:",
                b"data: {}",
                b"data:  x",
                b"event: y",
                b": ping",
                b"id: 1",
                b"retry: 5",
                b"data",
                b"dat: x",
                b"data: [DONE]",
            ]
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENT, max_size=6), CUTS, st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_the_data_of_events_is_what_the_specification_says(events, cuts, end):
    text = b"".join(end.join(lines) + end + end for lines in events)
    reader, got = EventCutter(), []
    for piece in cut(text, cuts):
        got += [event_data(e) for e in fed(reader, piece) if b"data" in e]
    assert [d for d in got if d] == [d for d in sse(text) if d] and not reader.tail


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"ab", b"abc", b"abcd", b"\n\n"]), max_size=30))
def test_an_event_in_pieces_is_cut_where_it_would_be_at_once(pieces):
    """The rule, without what makes it fast."""
    reader, tail = EventCutter(), b""
    for piece in pieces:
        parts = re.split(rb"(\r\n\r\n|\n\n|\r\r)", tail + piece)
        tail = parts[-1]
        assert reader.feed(piece) == [a + b for a, b in zip(parts[:-1:2], parts[1::2], strict=True)]
        assert reader.tail == tail


@pytest.mark.parametrize("piece", [b"x" * 65536, b"\r" + b"x" * 65535], ids=["plain", "with a line end"])
def test_an_event_without_end_costs_no_more_the_longer_it_is(piece):
    """64 MiB in pieces: joined each time, they would be 32 GiB."""
    reader, began = EventCutter(), time.process_time()
    for _ in range(1024):
        assert reader.feed(piece) == []
    assert time.process_time() - began < 4.0 and len(reader.tail) == 2**26


def test_data_lines_are_joined():
    assert event_data(b"data: [DONE]\r\n\r\n") == b"[DONE]"
    assert event_data(b"event: x\ndata: a\ndata:b\n\n") == b"a\nb"
    assert list(stream_objects(b'event: x\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n')) == [{"a": 1}]


def test_response_heads():
    head = ResponseHead(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    )
    assert (head.status, head.chunked, head.length, head.keep_alive, head.fields) == (
        200,
        True,
        None,
        False,
        [b"Content-Type: text/event-stream", *GUARD_LINES],
    )
    head = ResponseHead(b"HTTP/1.1 204 No Content\r\n")
    assert head.length == 0 and head.keep_alive
    assert not ResponseHead(b"HTTP/1.0 200 OK\r\n").keep_alive
    assert not head.streams
    assert ResponseHead(b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream;charset=utf-8\r\n").streams
    for bad in (
        b"HTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
    ):
        with pytest.raises(RemoteProtocolError):
            ResponseHead(bad)
