"""Clients never take the last open file: who connects and is silent goes first, and who has a call stays."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
from pathlib import Path

import httpx
import pytest
import tomli_w
from tests.support import process, slipstream, until, wait_for
from tests.support.dataplane import ASK
from tests.support.fake_engine import FakeEngine

from slipstream_proxy.data.server.acceptor import Acceptor
from slipstream_proxy.process import descriptors


@pytest.fixture
async def crowded(start, fake):
    """A proxy with room for so many connections."""
    proxy = await start()
    made: list[Acceptor] = []

    def limited(room: int) -> tuple[str, int]:
        sock = socket.create_server(("127.0.0.1", 0))
        made.append(Acceptor(proxy.server, sock, proxy.plane.metrics, room))
        return "127.0.0.1", sock.getsockname()[1]

    proxy.limited = limited
    yield proxy
    for one in made:
        one.close()


async def opened(stack: contextlib.AsyncExitStack, address: tuple[str, int]):
    reader, writer = await asyncio.open_connection(*address)
    stack.callback(writer.close)
    return reader, writer


async def asked(reader, writer) -> bytes:
    body = json.dumps(ASK).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return head


async def test_silent_connections_go_first_the_oldest_before_all(crowded):
    address = crowded.limited(8)
    async with contextlib.AsyncExitStack() as stack:
        kept = await opened(stack, address)
        assert (await asked(*kept)).startswith(b"HTTP/1.1 200")
        silent = [await opened(stack, address) for _ in range(30)]
        await until(silent[0][0].at_eof)
        assert (await asked(*kept)).startswith(b"HTTP/1.1 200"), "who has asked stays"
        assert (await asked(*silent[-1])).startswith(b"HTTP/1.1 200"), "and so do the newest"
        assert crowded.server.connected <= 8
        values = crowded.plane.metrics.values
        assert values["slipstream_connections_closed_total", 'why="silent"'] >= 22


async def test_heads_that_do_not_end_take_no_room_either(crowded, caplog):
    address = crowded.limited(8)
    async with contextlib.AsyncExitStack() as stack:
        for part in (b"POST /v1/ch", b"GET / HTTP/1.1\r\nX-A: b") * 15:
            _, writer = await opened(stack, address)
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(asked(*await opened(stack, address)), 5)).startswith(b"HTTP/1.1 200")
        assert crowded.server.connected <= 8
    assert "raise the hard limit" in caplog.text


async def test_connections_with_a_call_are_never_closed_for_new_ones(crowded, fake):
    address = crowded.limited(4)
    fake.hold = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        waiting = []
        for n in range(4):
            waiting.append(asyncio.create_task(asked(*await opened(stack, address))))
            await until(lambda n=n: len(crowded.plane.services.in_flight) == n + 1)
        late = asyncio.create_task(asked(*await opened(stack, address)))
        await asyncio.sleep(0.3)
        assert not late.done() and crowded.plane.metrics.values["slipstream_accepts_delayed_total", ""] > 0
        fake.hold.set()
        assert all(
            head.startswith(b"HTTP/1.1 200") for head in await asyncio.wait_for(asyncio.gather(*waiting, late), 10)
        )


def test_the_soft_limit_is_raised_as_far_as_it_may_be(monkeypatch):
    said = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: said.append(limits))
    descriptors.raise_limit()
    assert said == [(20_000, 20_000)]


async def test_two_thousand_silent_connections_at_a_limit_of_1024_stop_nobody(tmp_path: Path) -> None:
    """The hard limit is as low, so that raising the soft one does not help."""
    engine = await FakeEngine().start()
    config, data, log = tmp_path / "slipstream.toml", tmp_path / "data", tmp_path / "log"
    tree = {
        "data_dir": str(data),
        "proxy": {"port": 0, "segment_bytes": 4096},
        "engine": {"urls": [engine.url], "name": "tiny"},
    }
    config.write_text(tomli_w.dumps(tree))
    command = ["bash", "-c", 'ulimit -n 1024; exec "$@"', "-", *slipstream("proxy", "--config", str(config))]
    idle: list[socket.socket] = []
    try:
        with process(command, log) as p:

            def up() -> str:
                assert p.poll() is None, log.read_text()[-3000:]
                url: str = json.loads((data / "proxy.json").read_text())["url"]
                return url if httpx.get(url + "/readyz", timeout=10, trust_env=False).is_success else ""

            url = await asyncio.to_thread(wait_for, up, 90, 0.1, "the proxy is up")
            port = httpx.URL(url).port
            for _ in range(2000):
                idle.append(socket.create_connection(("127.0.0.1", port), timeout=30))
            async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                for n in range(20):  # each needs segments, engine connections and the control plane
                    call = await client.post(
                        f"{url}/v1/chat/completions", json=ASK, headers={"x-slipstream-episode": f"e{n}"}
                    )
                    assert call.status_code == 200
                    reward = await client.post(f"{url}/slipstream/v1/episodes/e{n}/rewards", json={"value": 1.0})
                    assert reward.status_code == 200, reward.text
                metrics = (await client.get(f"{url}/metrics")).text
    finally:
        for one in idle:
            one.close()
        await engine.stop()
    said = log.read_text()
    assert "capture lost" not in said and "Too many open files" not in said
    assert "raise the hard limit" in said and "slipstream_capture_lost_total 0" in metrics
    assert "slipstream_connections_closed_total{" in metrics
