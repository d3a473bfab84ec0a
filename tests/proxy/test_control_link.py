"""The worker's line to the control plane, over a real Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from tests.support import until
from yarl import URL

from slipstream.config import Config
from slipstream_proxy.data.engines.control_link import MOST_PINS, WRITE_PATIENCE, ControlLink, Look
from slipstream_proxy.data.engines.live import LiveView

STATE = {"models": {"tiny": {"base": "tiny", "live": "tiny@1"}}, "engines": [{"url": "http://a", "ok": True}]}


Pins = Callable[[list[dict[str, str]]], Awaitable[web.Response]]


@pytest.fixture
async def speak(tmp_path):
    """``await speak(live, pin)``: a control plane that writes these pieces, then holds the line; a link to it."""
    runners, links, tasks = [], [], []

    async def make(pieces: list[bytes], pin: Pins | web.Response | None = None, *, hold: bool = True) -> ControlLink:
        async def live(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0)
            if hold:
                await asyncio.Event().wait()
            return response

        async def answer(request: web.Request) -> web.Response:
            asked = await request.json()
            assert all(set(one) == {"key", "episode", "model", "task", "split", "tags"} for one in asked)
            assert pin is not None
            return await pin(asked) if callable(pin) else pin

        app = web.Application()
        app.router.add_get("/internal/live", live)
        app.router.add_post("/internal/pins", answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        path = tmp_path / "s"
        await web.UnixSite(runner, str(path)).start()
        runners.append(runner)
        link = ControlLink(
            path, LiveView(Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"}))
        )
        links.append(link)
        tasks.append(asyncio.create_task(link.follow()))
        return link

    yield make
    for task in tasks:
        task.cancel()
    for link in links:
        await link.close()
    for runner in runners:
        await runner.cleanup()


async def test_a_line_in_pieces_and_one_of_great_length(speak):
    state = {**STATE, "rest": "x" * 1_000_000}
    line = json.dumps(state).encode() + b"\n"
    link = await speak([line[:3], line[3:500_000], line[500_000:], b"{}\n"])
    await until(lambda: link.live.connected)
    assert link.live.models["tiny"].live == "tiny@1" and link.live.version == 1


@pytest.mark.parametrize("rubbish", [b"{\n", b'{"engines": 3}\n', b"[1]\n"])
async def test_rubbish_changes_nothing_and_the_line_is_taken_up_again(speak, rubbish):
    good = json.dumps(STATE).encode() + b"\n"
    link = await speak([good, rubbish, good.replace(b"tiny@1", b"tiny@2")])
    await until(lambda: link.live.version >= 3)
    assert link.live.models["tiny"].live == "tiny@1"


async def test_a_line_that_ends_is_said_and_begun_again(speak):
    link = await speak([json.dumps(STATE).encode() + b"\n"], hold=False)
    await until(lambda: link.live.version >= 2)
    await until(lambda: not link.live.connected)


@pytest.mark.parametrize(
    ("status", "text", "answer"),
    [
        (200, '[{"adapter": "tiny@1", "arm": "live"}]', {"adapter": "tiny@1", "arm": "live"}),
        (200, '[{"arm": "live"}]', None),
        (200, "[null]", None),
        (200, "[]", None),
        (200, '{"adapter": "tiny@1"}', None),
        (200, "rubbish", None),
        (500, "{}", None),
    ],
)
async def test_pins(speak, status, text, answer):
    link = await speak([json.dumps(STATE).encode() + b"\n"], web.Response(status=status, text=text))
    assert await link.pin("-", "e", "tiny", None, "train", {}) is None, "nobody is asked before the line is up"
    await until(lambda: link.live.connected)
    assert await link.pin("-", "e", "tiny", None, "train", {}) == answer


async def test_pins_of_runs_that_begin_together_are_asked_for_in_few_requests(speak):
    sizes = []

    async def pins(asked: list[dict[str, str]]) -> web.Response:
        sizes.append(len(asked))
        await asyncio.sleep(0.01)
        return web.json_response([{"adapter": one["episode"], "arm": "live"} for one in asked])

    link = await speak([json.dumps(STATE).encode() + b"\n"], pins)
    await until(lambda: link.live.connected)
    first = asyncio.create_task(link.pin("-", "first", "tiny", None, "train", {}))
    await asyncio.sleep(0.005)
    names = [f"e{n}" for n in range(2 * MOST_PINS)]
    found = await asyncio.gather(*(link.pin("-", name, "tiny", None, "train", {}) for name in names))
    assert [one["adapter"] for one in found] == names
    assert (await first)["adapter"] == "first"
    assert sizes == [1, MOST_PINS, MOST_PINS]


async def test_no_run_waits_behind_others_for_a_control_plane_that_hangs(speak, monkeypatch):
    monkeypatch.setattr("slipstream_proxy.data.engines.control_link.PIN_LIMIT", 0.2)
    asked = []

    async def hang(some: list[dict[str, str]]) -> web.Response:
        asked.append(len(some))
        await asyncio.sleep(60)
        return web.json_response([])

    link = await speak([json.dumps(STATE).encode() + b"\n"], hang)
    await until(lambda: link.live.connected)
    began = asyncio.get_running_loop().time()
    first = asyncio.create_task(link.pin("-", "first", "tiny", None, "train", {}))
    await asyncio.sleep(0.05)
    assert await asyncio.gather(*(link.pin("-", f"e{n}", "tiny", None, "train", {}) for n in range(20))) == [None] * 20
    assert await first is None
    assert asked == [1] and asyncio.get_running_loop().time() - began < 3.0


async def test_nobody_there(tmp_path):
    live = LiveView(Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"}))
    link = ControlLink(tmp_path / "nothing", live)
    live.connected = True
    assert await link.pin("-", "e", "tiny", "t", "train", {}) is None
    await link.close()


async def test_what_must_not_be_lost_is_sent_again_when_the_line_breaks(tmp_path):
    """A control plane that is killed while it reads, is away, and comes back."""
    path, taken = tmp_path / "s", []

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        taken.append("dropped")
        writer.close()

    async def take(request: web.Request) -> web.Response:
        taken.append(await request.text())
        return web.Response()

    link = ControlLink(path, LiveView(Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"})))
    url = URL("http://control/x")
    with pytest.raises(aiohttp.ClientConnectorError):
        await link.request("POST", url, data=b"reward")
    server = await asyncio.start_unix_server(drop, str(path))
    sending = asyncio.create_task(link.request("POST", url, restart=True, data=b"reward"))
    await until(lambda: len(taken) >= 2)
    server.close()
    path.unlink()
    await asyncio.sleep(1.0)
    assert not sending.done()
    app = web.Application()
    app.router.add_post("/x", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    try:
        async with await sending as reply:
            assert reply.status == 200
        assert taken[-1] == "reward" and set(taken[:-1]) == {"dropped"}
    finally:
        await link.close()
        await runner.cleanup()


async def test_a_control_plane_whose_queue_is_full_is_not_away(tmp_path, monkeypatch):
    """It hangs: what must not be lost waits for it no longer than any other write."""
    monkeypatch.setattr("slipstream_proxy.data.engines.control_link.WRITE_PATIENCE", 0.5)
    path = tmp_path / "s"
    link = ControlLink(path, LiveView(Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"})))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(1)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(path))
        async with asyncio.timeout(20):
            with pytest.raises(TimeoutError, match="hangs"):
                await link.request("POST", URL("http://control/x"), restart=True, data=b"reward")
    await link.close()


async def test_it_is_given_up_where_nobody_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream_proxy.data.engines.control_link.RESTART_PATIENCE_S", 0.5)
    link = ControlLink(
        tmp_path / "s", LiveView(Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"}))
    )
    with pytest.raises(aiohttp.ClientConnectorError):
        await link.request("POST", URL("http://control/x"), restart=True, data=b"reward")
    await link.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nobody_waits_for_a_control_plane_that_stands_still(tmp_path, method):
    """A process that is stopped takes connections and never answers: the kernel does it."""
    path = tmp_path / "s"
    code = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(64); print("up", flush=True); time.sleep(600)
"""
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(path), stdout=asyncio.subprocess.PIPE)
    link = ControlLink(path, LiveView(Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"})))
    try:
        assert other.stdout is not None
        await other.stdout.readline()
        other.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await link.request(method, URL("http://control/slipstream/v1/x"))
        assert time.monotonic() - began < 5 < WRITE_PATIENCE
    finally:
        other.kill()
        await other.wait()
        await link.close()


@pytest.mark.parametrize("answered", [True, False])
async def test_what_comes_while_it_is_looked_at_counts(tmp_path, monkeypatch, answered):
    """A refused connection, too, whose error nobody would have looked at."""
    link = ControlLink(tmp_path / "s", LiveView(Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"})))  # fmt: skip
    looking = asyncio.Event()

    async def accepted(*_: object, **__: object) -> str:
        await looking.wait()
        if answered:
            return "an answer"
        raise aiohttp.ClientConnectionError

    async def look() -> Look:
        looking.set()
        await asyncio.sleep(0.01)
        return Look.STANDS_STILL

    monkeypatch.setattr(link, "_accepted", accepted)
    monkeypatch.setattr(link, "_look", look)
    try:
        got: object = await link.request("GET", URL("http://control/x"))
    except aiohttp.ClientConnectionError:
        got = "its error"
    assert got == ("an answer" if answered else "its error")
    await link.close()


STALLS = """
import asyncio, sys, time
from aiohttp import web

async def main():
    async def stall(request):
        asyncio.get_running_loop().call_soon(time.sleep, 3.0)
        return web.Response()

    async def write(request):
        await request.read()
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/stall", stall), web.get("/internal/healthz", write), web.post("/x", write)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, sys.argv[1], backlog=4).start()
    print("up", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_writes_that_come_while_the_control_plane_is_busy_are_all_taken(tmp_path, monkeypatch):
    """More of them than the system lets wait to be accepted, on the worker's own kind of event loop."""
    import uvloop

    from slipstream_proxy.data.engines import control_link

    monkeypatch.setattr(control_link, "stands_still", lambda *_: False)  # it sleeps here; a busy one computes
    path = tmp_path / "s"

    async def write() -> list[int]:
        config = Config(data_dir=str(tmp_path), engine={"urls": ["http://a"], "name": "tiny"})
        link = ControlLink(path, LiveView(config))

        async def one(at: int) -> int:
            await asyncio.sleep(at / 100)
            async with await link.request("POST", URL("http://control/x"), data=b"{}") as reply:
                return reply.status

        try:
            async with await link.request("GET", URL("http://control/stall")):
                return list(await asyncio.gather(*(one(at) for at in range(100))))
        finally:
            await link.close()

    with subprocess.Popen([sys.executable, "-c", STALLS, str(path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                assert runner.run(write()) == [200] * 100
        finally:
            other.kill()
