from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import aiohttp
import pytest
from tests.support.plane import API, until

from slipstream_proxy.control.api.routes import status as stream
from slipstream_proxy.keys import Keys

PATH = API + "/events/stream"


@contextlib.asynccontextmanager
async def following(plane, last: str | None = None, **who):
    """An open stream, as a function that waits for the next event of a name: its id and its data."""
    headers = plane.as_(**who) | ({"last-event-id": last} if last else {})
    async with plane.client.get(PATH, headers=headers) as reply:
        assert (reply.status, reply.content_type) == (200, "text/event-stream")

        async def event(name: str) -> tuple[str, dict]:
            fields: dict[str, str] = {}
            while True:
                line = (await asyncio.wait_for(reply.content.readline(), 10)).decode().strip()
                if not line and fields.get("event") == name:
                    return fields["id"], json.loads(fields["data"])
                fields = fields | dict([line.split(": ", 1)]) if ": " in line and line[0] != ":" else {}

        yield event


async def test_a_call_is_told_within_half_a_second(plane):
    """The quickest of a few: what else the machine does is no fault of the stream."""
    took = []
    async with following(plane) as event:
        for episode in ("e1", "e2", "e3", "e4"):
            started = time.monotonic()
            call = await plane.call(episode)
            assert (await event("call"))[1] == {"call": call, "episode": episode, "key": "-"}
            took.append(time.monotonic() - started)
            assert (await event("episode"))[1] == {"episode": episode, "key": "-"}
    assert min(took) < 0.5


async def test_rewards_steps_and_adapters_are_told(plane):
    await plane.call("e1")
    await plane.seen("e1")
    async with following(plane) as event:
        await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0})
        assert (await event("reward"))[1] == {"episode": "e1", "key": "-", "name": "reward"}
        await plane.ask("POST", "/training/events", {"kind": "step", "data": {"loss": 1}})
        assert (await event("step"))[1] == {"kind": "step"}
        await plane.ask("POST", "/training/events", {"kind": "promote"})
        assert (await event("adapter"))[1] == {"kind": "promote"}


async def test_it_goes_on_after_the_last_event_seen_and_resets_after_a_restart(plane):
    async with following(plane) as event:
        await plane.call("e1")
        seen, _ = await event("call")
    second = await plane.call("e2")
    await plane.seen("e2")
    async with following(plane, seen) as event:
        assert (await event("call"))[1]["call"] == second
    await plane.again()
    async with following(plane, seen) as event:
        await event("reset")


async def test_keys_see_their_own_calls_and_viewers_all(plane):
    async with (
        following(plane, key="a", scopes=["inference"]) as mine,
        following(plane, key="v", scopes=["viewer"]) as all_,
    ):
        await plane.call("theirs", key="b")
        await plane.call("ours", key="a")
        assert (await mine("call"))[1]["episode"] == "ours"
        assert (await all_("call"))[1]["episode"] == "theirs"


async def test_a_reader_that_takes_nothing_is_dropped(plane, monkeypatch):
    monkeypatch.setattr(stream, "STALLED_READER_TIMEOUT_S", 0.3)
    feed = plane.deps.feed
    url = plane.client.make_url(PATH)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((url.host, url.port))
        auth = plane.as_()["x-slipstream-auth"]
        client.sendall(f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\nx-slipstream-auth: {auth}\r\n\r\n".encode())
        await until(lambda: feed.readers == 1)

        def gone() -> bool:
            for _ in range(500):
                feed.publish("call", "-", call="x" * 200)
            return feed.readers == 0

        await until(gone)


async def test_readers_are_counted_and_limited(plane, monkeypatch):
    monkeypatch.setattr(stream, "MOST_READERS", 1)
    async with following(plane):
        status, body = await plane.ask("GET", "/events/stream")
        assert status == 503, body
    await until(lambda: plane.deps.feed.readers == 0)


@pytest.mark.parametrize("scopes", [[], ["nothing"]])
async def test_a_key_without_a_scope_sees_nothing(plane, scopes):
    assert (await plane.ask("GET", "/events/stream", scopes=scopes))[0] == 403


def as_secret(keys: Keys, key: str, *scopes: str) -> dict[str, str]:
    """What the data plane says of who asks with the key's newest secret."""
    made = next(k.created for k in keys.list() if k.id == key)
    return {"x-slipstream-auth": json.dumps({"key": key, "scopes": scopes, "made": made})}


@pytest.mark.parametrize("path", ["/events/stream", "/training/events?follow=true"])
@pytest.mark.parametrize("how", ["revoke", "rotate"])
async def test_what_a_key_follows_ends_with_its_secret(plane, path, how):
    keys = Keys(plane.config.keys_file)
    stays, _ = keys.add("stays", ["admin"])
    goes, _ = keys.add("goes", ["admin"])
    await plane.ask("POST", "/training/events", {"kind": "note"})
    here = "/slipstream/v1" + path
    async with (
        plane.client.get(here, headers=as_secret(keys, stays, "admin")) as staying,
        plane.client.get(here, headers=as_secret(keys, goes, "admin")) as ended,
    ):
        await staying.content.readline()
        await ended.content.readline()
        getattr(keys, how)(goes)
        with contextlib.suppress(aiohttp.ClientPayloadError):
            await asyncio.wait_for(ended.content.read(), 20)
        await plane.ask("POST", "/training/events", {"kind": "note"})
        while b"note" not in (line := await asyncio.wait_for(staying.content.readline(), 20)):
            assert line, "the other key's goes on"
