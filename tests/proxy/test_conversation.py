"""Which episode a call belongs to."""

from __future__ import annotations

import asyncio
import json

from tests.support.dataplane import ASK, post

from slipstream_proxy.data.call.steps.capture import Capture
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import Turn


async def test_an_untagged_call_continues_what_was_said(start, fake):
    proxy = await start()
    _, headers, body = await post(proxy.url, ASK)
    said = json.loads(body)["choices"][0]["message"]
    more = [*ASK["messages"], said, {"role": "user", "content": "and then?"}]
    _, again, _ = await post(proxy.url, {**ASK, "messages": more})
    assert again["x-slipstream-episode"] == headers["x-slipstream-episode"]
    _, other, _ = await post(proxy.url, ASK)
    assert other["x-slipstream-episode"] != headers["x-slipstream-episode"]


async def _streamed_twice(proxy) -> tuple[str, str]:
    """The episodes of a streamed call and of the one that goes on."""
    _, headers, body = await post(proxy.url, {**ASK, "stream": True})
    events = [json.loads(e[6:]) for e in body.decode().split("\n\n") if e.startswith("data: {")]
    deltas = [choice["delta"] for e in events for choice in e["choices"]]
    said = {"role": "assistant", "content": "".join(d.get("content") or "" for d in deltas)}
    more = [*ASK["messages"], said, {"role": "user", "content": "and then?"}]
    _, again, _ = await post(proxy.url, {**ASK, "messages": more})
    return headers["x-slipstream-episode"], again["x-slipstream-episode"]


async def test_an_untagged_stream_is_heard_as_it_comes(start, fake, monkeypatch):
    proxy = await start()
    read = []
    monkeypatch.setattr(type(BY_NAME["chat"]), "said", lambda self, reply, *, stream: read.append(stream) or Turn())
    first, second = await _streamed_twice(proxy)
    assert first == second and True not in read  # nothing of it is read at its end


async def test_a_stream_that_could_not_be_heard_is_read_at_its_end(start, fake, monkeypatch):
    proxy = await start()
    changed, seen = Capture.event, []

    def event(self, call, event):
        seen.append(event)
        if len(seen) == 1:
            raise RuntimeError("one event cannot be read")
        return changed(self, call, event)

    monkeypatch.setattr(Capture, "event", event)
    read = []
    monkeypatch.setattr(type(BY_NAME["chat"]), "said", lambda self, reply, *, stream: read.append(stream) or Turn())
    fake.hold = asyncio.Event()  # the other events come later
    asyncio.get_running_loop().call_later(0.1, fake.hold.set)
    await _streamed_twice(proxy)
    assert read[0] is True


async def test_done_ends_the_name(start, fake):
    proxy = await start()
    named = {"x-slipstream-episode": "e"}
    _, first, _ = await post(proxy.url, ASK, headers={**named, "x-slipstream-done": "true"})
    _, second, _ = await post(proxy.url, ASK, headers=named)
    assert (first["x-slipstream-episode"], second["x-slipstream-episode"]) == ("e", "e~2")


async def test_a_call_that_failed_and_is_sent_again_is_no_new_run(start, fake):
    proxy = await start()
    fake.fail_with = 500
    status, first, _ = await post(proxy.url, ASK)
    assert status == 500
    fake.fail_with = None
    _, again, _ = await post(proxy.url, ASK, headers={"x-stainless-retry-count": "1"})
    assert again["x-slipstream-episode"] == first["x-slipstream-episode"]
