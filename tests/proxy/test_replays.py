"""Idempotent calls."""

from __future__ import annotations

import pytest
from tests.support.dataplane import ASK, post

from slipstream_proxy.data.call.steps.replays import Replay, Replays


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_key_and_body_get_the_same_reply(start, fake, stream):
    proxy = await start()
    keyed = {"idempotency-key": "i-1"}
    first = await post(proxy.url, {**ASK, "stream": stream}, headers=keyed)
    again = await post(proxy.url, {**ASK, "stream": stream}, headers=keyed)
    assert len(fake.seen) == 1 and first[2] == again[2]
    assert first[1]["x-slipstream-call"] == again[1]["x-slipstream-call"]
    await post(proxy.url, {**ASK, "stream": stream, "seed": 1}, headers=keyed)
    assert len(fake.seen) == 2 and not proxy.plane.services.in_flight


def test_the_oldest_are_forgotten():
    replays = Replays(limit=8000)
    for number in range(20):
        replays.put("k", b"%d" % number, Replay(b"h", 200, b"", b"x" * 1000, stream=False))
    assert replays.get("k", b"11", b"h") is None and replays.get("k", b"12", b"h") is not None
    assert replays.get("other", b"19", b"h") is None and replays.get("k", b"19", b"other") is None
    replays.put("k", b"large", Replay(b"h", 200, b"", b"x" * 1001, stream=False))
    assert replays.get("k", b"large", b"h") is None
