"""The fuzzer's whole way, with inputs of a fixed seed: that it runs at all, and that what it checks can fail."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.fuzz.whole_way import COMPARE_EVERY, WholeWay

from slipstream_proxy.data.server import connection
from slipstream_proxy.data.wire import request as request_head

GOOD = b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"stream":%s}'


def request(body: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.fixture(scope="module")
def made() -> Iterator[WholeWay]:
    made = WholeWay()
    made.loop.leave()
    yield made
    made.close()


@pytest.fixture
def way(made: WholeWay) -> Iterator[WholeWay]:
    """Its loop runs in this thread during the test, and not beside the loops of other tests."""
    made.loop.enter()
    yield made
    made.loop.leave()


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_what_is_sent_is_answered_and_recorded(way, stream):
    data = request(GOOD % stream)
    for compared, calls in ((True, 6), (False, 2)):  # three calls on two ways, or two on one
        asked, recorded = way.asked, way.recorded
        way.inputs = COMPARE_EVERY - (not compared)
        way.send([data[:50], data[50:]])
        way.read_records()
        assert way.asked - asked == way.recorded - recorded == calls
        assert way.engine.raw, "the engine was asked"


def test_spoiled_requests_say_the_same_on_both_ways(way):
    rng = random.Random(1)
    for _ in range(60):
        data = bytearray(request(GOOD % rng.choice([b"true", b"false"])) * rng.randrange(1, 3))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.randrange(len(data))
        way.send([bytes(data[:cut]), bytes(data[cut:])])
    way.read_records()


def test_a_difference_is_found(way, monkeypatch):
    way.inputs = 0
    monkeypatch.setattr(way, "talk", lambda parts, patience, said=iter(range(99)): ([b"200"], [b"%d" % next(said)], []))
    with pytest.raises(AssertionError):
        way.send([request(GOOD % b"false")])


def test_a_request_that_one_way_alone_refuses_is_found(way, monkeypatch):
    bare = request(GOOD % b"false").replace(b"localhost\r\n", b"localhost\n")
    way.inputs = 0
    way.send([bare])
    read = request_head.parse_fields
    monkeypatch.setattr(
        connection, "parse_fields", lambda text: read(text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    )
    way.inputs = 0
    with pytest.raises(AssertionError):
        way.send([bare])


@pytest.mark.parametrize("line", [b"User-Agent: a\r\nUser-Agent: b", b"Server: a\r\nX: y\r\nServer: b"])
def test_what_aiohttp_alone_refuses_is_no_difference(way, line):
    way.inputs = 0
    way.send([request(GOOD % b"true").replace(b"Host:", line + b"\r\nHost:")])
    way.read_records()


def test_bytes_behind_a_request_that_closes_are_no_difference(way):
    one = request(GOOD % b"true")
    way.inputs = 0
    way.send([one, one.replace(b"Host:", b"Connection: close\r\nHost:") + one])
    way.read_records()


def test_a_length_beyond_64_bits_is_refused_on_both_ways(way):
    way.inputs = 0
    way.send([request(GOOD % b"true").replace(b"Length: ", b"Length: 184467440737095516")])
