"""What the data plane makes of requests for the control plane: who asks goes along, credentials do not."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from unittest.mock import ANY

import aiohttp
import pytest
from aiohttp import web
from tests.support import until
from yarl import URL

from slipstream_proxy.data.routes.control import MOST_REWARD, is_control
from slipstream_proxy.data.wire.replies import end_to_end
from slipstream_proxy.keys import Keys


@pytest.fixture
async def control(tmp_path):
    """A server on the control plane's socket; ``seen``: (method, path, headers, body)."""
    seen = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        if "refuse" in request.query:
            return web.json_response({}, status=429, headers={"retry-after": "1"})
        response = web.StreamResponse(status=207, headers={"x-answer": "yes", "Proxy-Authenticate": "x"})
        if b"final" in seen[-1][3]:
            response.headers["x-slipstream-done"] = "true"
        await response.prepare(request)
        await response.write(b'{"a":')
        await response.write(b"1}\n")
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    (tmp_path / "data").mkdir(exist_ok=True)

    async def listen(path):
        await web.UnixSite(runner, str(path)).start()
        return seen

    yield listen
    await runner.cleanup()


async def ask(proxy, method, path, **kw):
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, URL(proxy.url + path, encoded=True), **kw) as reply,
    ):
        return reply.status, reply.headers, await reply.read()


async def test_forwarded_as_it_is(start, control):
    proxy = await start()
    seen = await control(proxy.config.socket)
    sent = {"Authorization": "Bearer x", "X-Slipstream-Auth": '{"scopes": ["admin"]}', "X-Other": "1"}
    status, headers, body = await ask(proxy, "POST", "/slipstream/v1/episodes?a=%2Fb", data=b"hello", headers=sent)
    assert (status, headers["x-answer"], body) == (207, "yes", b'{"a":1}\n') and "proxy-authenticate" not in headers
    method, path, fields, data = next(s for s in seen if s[1].startswith("/slipstream"))
    assert (method, path, data) == ("POST", "/slipstream/v1/episodes?a=%2Fb", b"hello")
    assert (
        json.loads(fields["x-slipstream-auth"])["key"] == "-"
        and fields["X-Other"] == "1"
        and "Authorization" not in fields
    )


async def test_who_asks_goes_along(start, control, tmp_path):
    uid, secret = Keys(tmp_path / "data" / "keys.json").add("j", ["judge"])
    proxy = await start()
    seen = await control(proxy.config.socket)
    status, _, body = await ask(proxy, "GET", "/slipstream/v1/status")
    told = json.loads(body)["error"]
    assert (status, told["field"]) == (401, "header.authorization") and "Bearer" in told["fix"]
    await ask(proxy, "GET", "/slipstream/v1/status", headers={"X-Api-Key": secret})
    assert (await ask(proxy, "GET", "/"))[0] == 207  # the page asks for a key itself
    told = [json.loads(s[2]["x-slipstream-auth"]) for s in seen if "x-slipstream-auth" in s[2]]
    assert told == [{"key": uid, "scopes": ["judge"], "made": ANY}, {"key": "-", "scopes": []}]
    assert secret not in str(seen)


async def test_the_control_plane_learns_which_episodes_have_begun(start, control):
    proxy = await start()
    seen = await control(proxy.config.socket)
    call = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    await ask(proxy, "POST", "/v1/chat/completions", json=call, headers={"x-slipstream-episode": "here"})
    for name in ("here", "nowhere"):
        mine = {"x-slipstream-begun": "1"}  # a client's own says nothing
        await ask(proxy, "POST", f"/slipstream/v1/episodes/{name}/rewards", json={"value": 1}, headers=mine)
    begun = {path.split("/")[4]: "x-slipstream-begun" in fields for _, path, fields, _ in seen if "/rewards" in path}
    assert begun == {"here": True, "nowhere": False}


async def test_a_body_that_does_not_come_is_not_waited_for(start, control):
    proxy = await start(proxy={"header_timeout": 0.2})
    await control(proxy.config.socket)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"POST /slipstream/v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nab")
    async with asyncio.timeout(30):
        got = await reader.read()
    writer.close()
    assert got.startswith(b"HTTP/1.1 408") and b'"timeout_error"' in got


async def test_what_is_unpacked_is_not_called_packed(start, control):
    proxy = await start()
    seen = await control(proxy.config.socket)
    packed = gzip.compress(b'{"a": 1}')
    await ask(proxy, "POST", "/slipstream/v1/x", data=packed, headers={"Content-Encoding": "gzip"})
    _, _, fields, data = next(s for s in seen if s[1].startswith("/slipstream"))
    assert data == b'{"a": 1}' and "Content-Encoding" not in fields


def test_what_is_the_control_planes():
    assert all(is_control(p) for p in ("/", "/favicon.ico", "/slipstream/v1/x", "/static/a.js"))
    assert not any(is_control(p) for p in ("/v1/models", "/slipstreams", "/metrics"))


def test_fields_of_this_hop_stay_behind():
    assert dict(end_to_end({"Connection": "close", "Transfer-Encoding": "chunked", "X-A": "1"})) == {"X-A": "1"}


async def test_a_reward_that_ends_its_episode(start, fake, control):
    proxy = await start()
    await control(proxy.config.socket)

    async def run() -> str:
        call = {"model": "gpt-4o", "messages": [{"role": "user", "content": "a"}]}
        headers = {"x-slipstream-episode": "e"}
        return (await ask(proxy, "POST", "/v1/chat/completions", json=call, headers=headers))[1]["x-slipstream-episode"]

    rewards = "/slipstream/v1/episodes/e/rewards"
    assert await run() == "e"
    await ask(proxy, "POST", rewards, data=b"halfway")
    assert await run() == "e"
    headers = (await ask(proxy, "POST", rewards, data=b"final"))[1]
    assert headers["x-slipstream-done"] == "true"
    assert await run() == "e~2"
    await ask(proxy, "POST", rewards, data=b"final, corrected")
    assert await run() == "e~2", "a late reward of the first run ends nothing else"


async def test_a_control_plane_that_hangs_is_a_503_within_a_second(start, tmp_path):
    proxy = await start()

    async def hang(reader, writer):
        while await reader.read(2**16):
            pass  # until the worker gives up
        writer.close()

    server = await asyncio.start_unix_server(hang, str(proxy.plane.config.socket))
    began = asyncio.get_running_loop().time()
    status, _, body = await ask(proxy, "GET", "/slipstream/v1/status")
    assert (status, asyncio.get_running_loop().time() - began < 1.0) == (503, True)
    assert "does not answer yet: it takes some seconds to start; calls are served" in str(body)
    proxy.plane.live.known = True  # it was there before
    assert "does not answer; calls are served" in str((await ask(proxy, "GET", "/slipstream/v1/status"))[2])
    server.close()


async def test_a_reward_is_not_lost_to_a_control_plane_that_is_busy(start, tmp_path):
    """An overloaded machine: nothing is answered for two seconds, pings neither."""
    proxy = await start()
    posted: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(max(0.0, busy_until - asyncio.get_running_loop().time()))
        posted.append(await request.read())
        return web.json_response({"stored": True})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(proxy.plane.config.socket)).start()
    busy_until = asyncio.get_running_loop().time() + 2.0
    status, _, _ = await ask(proxy, "POST", "/slipstream/v1/episodes/e/rewards", data=b"final")
    assert (status, posted.count(b"final")) == (200, 1)
    await runner.cleanup()


async def test_a_note_waits_for_a_control_plane_that_is_started_again(start, control):
    proxy = await start()
    path = "/slipstream/v1/episodes/e/comments"
    first = asyncio.create_task(ask(proxy, "POST", path, data=b'{"text": 1}'))
    with pytest.raises(TimeoutError):  # many clients wait for five seconds, and look at nothing
        await ask(proxy, "POST", path, data=b'{"text": 2}', timeout=aiohttp.ClientTimeout(total=0.5))
    packed = {"Content-Encoding": "gzip"}
    third = asyncio.create_task(ask(proxy, "POST", path, data=gzip.compress(b'{"text": 3}'), headers=packed))
    assert (await ask(proxy, "POST", "/slipstream/v1/training/pause"))[0] == 503, "the others are told at once"
    assert not first.done()
    seen = await control(proxy.config.socket)
    assert [(await one)[0] for one in (first, third)] == [207, 207]
    notes = [b'{"text": 1}', b'{"text": 2}', b'{"text": 3}']
    await until(lambda: sorted(body for _, at, _, body in seen if at == path) == notes)


async def test_a_reward_that_is_too_large_is_refused(start, control):
    proxy = await start()
    await control(proxy.config.socket)
    status, _, body = await ask(proxy, "POST", "/slipstream/v1/episodes/e/rewards", data=b" " * (MOST_REWARD + 1))
    assert status == 413 and b"larger than 1048576 bytes" in body
    assert json.loads(body)["error"]["field"] == "body" and json.loads(body)["error"]["fix"]


async def test_a_body_that_is_not_packed_as_it_says_names_the_header(start, control):
    proxy = await start()
    await control(proxy.config.socket)
    path, packed = "/slipstream/v1/episodes/e/feedback", {"Content-Encoding": "gzip"}
    status, _, body = await ask(proxy, "POST", path, data=b'{"text": "x"}', headers=packed)
    assert (status, json.loads(body)["error"]["field"]) == (400, "header.content-encoding")


async def test_a_route_that_takes_long_is_waited_for(start, tmp_path):
    proxy = await start()

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0 if "healthz" in request.path else 1.2)
        return web.json_response({"path": request.path})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(proxy.plane.config.socket)).start()
    assert (await ask(proxy, "GET", "/slipstream/v1/adapters?wait=600"))[0] == 200
    await runner.cleanup()


async def test_a_key_that_was_turned_away_is_held_when_it_asks_again_at_once(start, control, tmp_path):
    """Thousands of refusals a second would keep both processes busy."""
    keys = Keys(tmp_path / "data" / "keys.json")
    hasty, other = ({"authorization": f"Bearer {keys.add(name, ['inference'])[1]}"} for name in ("hasty", "other"))
    proxy = await start()
    seen = await control(proxy.config.socket)

    async def episodes(headers, query=""):
        began = time.monotonic()
        status, _, body = await ask(proxy, "GET", "/slipstream/v1/episodes" + query, headers=headers)
        return status, body, time.monotonic() - began

    assert (await episodes(hasty, "?refuse"))[0] == 429
    held = asyncio.gather(*(episodes(hasty) for _ in range(20)))
    assert (await episodes(other))[0] == 207
    assert (await ask(proxy, "GET", "/slipstream/v1/status", headers=hasty))[0] == 207
    replies = await held
    assert {status for status, *_ in replies} == {429} and min(took for *_, took in replies) > 0.5
    assert b"retried before its Retry-After" in replies[0][1]
    assert len([path for _, path, *_ in seen if "/episodes" in path]) == 2, "the control plane was not asked again"
    assert (await episodes(hasty))[0] == 207, "who waits as told is not held"
