"""A call's beginning: what it is to be, and what it says when that fails."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dataplane import ASK, post, read_request

from slipstream_proxy.data.call.parts import CallRoute
from slipstream_proxy.data.call.payload import body_hash, read_payload
from slipstream_proxy.dialects.base import dumps


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_bodies_are_told_apart(a, b):
    assert (body_hash(a) == body_hash(b)) == (a == b)
    assert body_hash(a) == f"{len(a)}-{crc32c(a)}".encode()


@pytest.mark.parametrize(
    ("path", "shape"), [("/v1/chat/completions", "error"), ("/v1/responses", "error"), ("/v1/messages", "type")]
)
async def test_a_bug_is_a_502_in_the_formats_shape(start, fake, monkeypatch, path, shape):
    proxy = await start()

    def broken(*_a, **_k):
        raise RuntimeError("a bug")

    monkeypatch.setattr(proxy.plane.episodes, "of", broken)
    status, _, body = await post(proxy.url, {**ASK, "max_tokens": 1, "input": "x"}, path=path)
    assert status == 502 and shape in json.loads(body) and b"a bug" not in body
    assert not proxy.plane.services.in_flight and not fake.seen


async def test_the_default_model_is_not_named_to_the_engine(start, fake):
    proxy = await start()
    await post(proxy.url, {"messages": ASK["messages"]})
    await post(proxy.url, {**ASK, "metadata": {"slipstream_episode": "e", "mine": 1}})
    assert "model" not in fake.seen[0][0] and fake.seen[1][0]["metadata"] == {"mine": 1}


BOMB = b'{"model":"tiny","messages":[' + b"{}," * (2**25 // 3 - 20) + b"{}]}"


def test_a_bomb_is_not_read():
    assert len(BOMB) <= 2**25 and read_payload(BOMB) is None
    assert read_payload(b'{"a":"' + b"lorem, ipsum " * 200_000 + b'"}') is not None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"])
async def test_a_body_too_heavy_to_be_read_goes_as_it_came(start, serve, path):
    """Of the largest body, that would be a gigabyte of objects, and seconds in which the worker serves nobody."""
    body = b'{"model":"tiny","messages":[' + b"{}," * 400_000 + b"{}]}"
    got = []

    async def engine(reader, writer):
        request = await read_request(reader)
        got.append(request.partition(b"\r\n\r\n")[2])
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}")

    proxy = await start(engine={"urls": [await serve(engine)]})
    status, _, _ = await post(proxy.url, body, path=path)
    assert (status, got) == (400, [body])
    if path != "/v1/embeddings":
        (frame,) = await proxy.record(1)
        assert frame.request == body and frame.head["note"] == "too heavy a request"


def test_what_a_call_sends_is_kept_without_room_to_spare():
    def sent(number: int) -> CallRoute:
        route = CallRoute(b"", "/v1/chat/completions")
        route.write(dumps({"n": number, "content": "x" * 4000}))
        return route

    sent(0)
    tracemalloc.start()
    try:
        routes = [sent(number) for number in range(50)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.3 * sum(len(route.body) for route in routes)
