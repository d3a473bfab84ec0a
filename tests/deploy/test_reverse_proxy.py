"""The examples of reverse proxies: streams come through as they are made, tags arrive, and the page may write."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from aiohttp import web
from tests.support import ROOT, free_port, process, wait_for
from tests.support.fake_engine import FakeEngine, beside
from tests.support.running import Running, run_proxy
from tests.support.served import Served

EXAMPLES = ROOT / "deploy" / "reverse-proxy"
ASK = {"model": "inbox", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    engine = FakeEngine()
    engine.models = {"inbox"}
    with beside(engine), run_proxy(tmp_path_factory.mktemp("p"), engine.url) as proxy:
        yield proxy


def nginx(folder: Path, upstream: str, port: int) -> list[str]:
    text = (EXAMPLES / "nginx.conf").read_text().replace("http://127.0.0.1:8100", upstream)
    server = re.sub(r"\n *ssl_.*", "", text).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    temp = " ".join(f"{n}_temp_path {folder}/{n};" for n in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    conf = folder / "nginx.conf"
    conf.write_text(f"daemon off; pid {folder}/pid; events {{}} http {{ access_log off; {temp}\n{server}\n}}")
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(conf)]


def caddy(folder: Path, upstream: str, port: int) -> list[str]:
    text = (EXAMPLES / "Caddyfile").read_text().replace("127.0.0.1:8100", upstream.removeprefix("http://"))
    conf = folder / "Caddyfile"
    text = text.replace("slipstream.example", f"http://127.0.0.1:{port}")
    conf.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + text)
    return ["caddy", "run", "--config", str(conf), "--adapter", "caddyfile"]


@pytest.mark.parametrize("front", [nginx, caddy], ids=lambda f: f.__name__)
def test_behind_it_all_is_as_before(front, running, tmp_path):
    if shutil.which(front.__name__) is None:
        pytest.skip(f"{front.__name__} is not installed")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with process(front(tmp_path, running.url, port), tmp_path / "log"):
        wait_for(lambda: httpx.get(f"{url}/readyz", trust_env=False).is_success, 30, 0.1, "the reverse proxy is up")
        session = {"session_id": "5f0c9a52-8d0e-4f7b-9b31-0c8a7f2d1e11"}
        said = httpx.post(f"{url}/v1/chat/completions", json=ASK, headers=session, trust_env=False)
        assert said.headers["x-slipstream-episode"] == session["session_id"]
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={**ASK, "stream": True}, trust_env=False) as got:
            events = [part for part in got.iter_raw() if part]
        assert b"".join(events).endswith(b"data: [DONE]\n\n")
        note = {"text": f"behind {front.__name__}"}
        write = httpx.post(f"{url}/slipstream/v1/annotations", json=note, headers={"origin": url}, trust_env=False)
        assert write.is_success, write.text
        strange = {"origin": "http://evil.example"}
        assert (
            httpx.post(f"{url}/slipstream/v1/annotations", json=note, headers=strange, trust_env=False).status_code
            == 403
        )


def test_a_stream_is_not_held_back(running, tmp_path):
    """The first event is there while the engine has not sent its last: what buffering off is for."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    shown: list[bool] = []

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        until = asyncio.get_running_loop().time() + 20
        while not shown and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.02)
        await response.write(json.dumps(shown).encode())
        return response

    app = web.Application()
    app.router.add_get("/", slow)
    port = free_port()
    with Served(app) as upstream, process(nginx(tmp_path, upstream, port), tmp_path / "log"):
        wait_for(lambda: listens(port), 30, 0.1, "nginx is up")
        with httpx.stream("GET", f"http://127.0.0.1:{port}/", trust_env=False, timeout=40) as got:
            parts = got.iter_raw()
            first = next(parts)
            shown.append(True)
            assert first + b"".join(parts) == b"data: 1\n\n[true]"


def listens(port: int) -> bool:
    """Somebody listens there."""
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def test_traefiks_example_hands_on_the_host_and_flushes_at_once():
    service = yaml.safe_load((EXAMPLES / "traefik.yaml").read_text())["http"]["services"]["slipstream"]["loadBalancer"]
    assert service["passHostHeader"] is True and service["responseForwarding"]["flushInterval"].startswith("-")
