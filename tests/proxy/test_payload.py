"""A call's beginning: what it is to be, and what it says when that fails."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dataplane import ASK, post

from slipstream_proxy.data.call.payload import body_hash


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_bodies_are_told_apart(a, b):
    assert (body_hash(a) == body_hash(b)) == (a == b)


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
