"""Does a server answer?"""

from __future__ import annotations

import socket
import threading

import pytest
from tests.support import free_port
from tests.support.server import Server

from slipstream.shared.processes.health import answers


@pytest.mark.parametrize(("status", "good"), [(200, True), (204, True), (404, False), (503, False)])
async def test_a_2xx_is_an_answer(server: Server, status: int, good: bool) -> None:
    server.on("GET", "/health", {}, status)
    assert await answers(f"{server.url}/health") is good


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert not await answers(f"http://127.0.0.1:{free_port()}/health")


async def test_what_speaks_no_http_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:

        def talk() -> None:
            peer, _ = s.accept()
            peer.sendall(b"SSH-2.0-x\r\n")
            peer.close()

        threading.Thread(target=talk, daemon=True).start()
        assert not await answers(f"http://127.0.0.1:{s.getsockname()[1]}/health")
