"""Real routers before stand-in engines: which keep a run at its engine, and which pass a request as it was sent."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tests.support import free_port, process, wait_for
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.running import recorded, run_settings

from slipstream.client import Client
from slipstream.contract import AdapterIn

RUNS, TURNS = 12, 3
NGINX = """
daemon off; worker_processes 1; pid FOLDER/nginx.pid; error_log FOLDER/error.log;
events { worker_connections 64; }
http {
  access_log off; client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy;
  fastcgi_temp_path FOLDER/fastcgi; uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
  upstream engines { hash $http_x_session_id consistent; SERVERS }
  server {
    listen 127.0.0.1:PORT;
    location / { proxy_pass http://engines; proxy_http_version 1.1; proxy_buffering off; proxy_set_header Connection ""; }
  }
}
"""


class Router(NamedTuple):
    module: str
    """Python module; empty: a program of the system."""
    arguments: Sequence[str] = ()
    header: str = "X-Session-ID"
    drops: str | None = None
    """A field that it takes away from a request."""
    learns: bool = True
    """False: it refuses a version that an engine loads later. Its calls go past it, to the engine of their run."""

    def command(self, folder: Path, port: int, urls: Sequence[str]) -> list[str]:
        if not self.module:
            program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
            assert program is not None
            servers = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
            text = NGINX.replace("FOLDER", str(folder)).replace("PORT", str(port)).replace("SERVERS", servers)
            (folder / "nginx.conf").write_text(text)
            return [program, "-c", str(folder / "nginx.conf"), "-p", str(folder)]
        where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        fast = ["--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"]
        return [sys.executable, "-m", self.module, *where, "--worker-urls", *urls, *fast, *self.arguments]

    @property
    def there(self) -> bool:
        if not self.module:
            return shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin") is not None
        return importlib.util.find_spec(self.module.partition(".")[0]) is not None


ROUTERS = {
    "nginx": Router(""),
    "vllm-router": Router("vllm_router.launch_router", ["--policy", "consistent_hash"]),
    "sglang-router": Router(
        "sglang_router.launch_router", ["--policy", "manual"], "X-SMG-Routing-Key", "return_token_ids"
    ),
    "smg": Router(
        "smg.launch_router", ["--policy", "consistent_hashing", "--backend", "vllm"], "X-SMG-Routing-Key", None, False
    ),
}


@pytest.mark.parametrize("name", ROUTERS)
async def test_runs_stay_at_their_engine_behind_a_real_router(name, tmp_path):
    router = ROUTERS[name]
    if not router.there:
        pytest.skip(f"{name} is not installed")
    engines = [await LoraEngine().start() for _ in range(2)]
    try:
        await asyncio.to_thread(_whole, router, engines, tmp_path)
    finally:
        for engine in engines:
            await engine.stop()


def _said(client: Client, router: Router) -> bool:
    """Whether the status says what is wrong with the router, and nothing where nothing is."""
    line = next((f for f in client.status().funnel.lines if f.cause == "router_rewrites"), None)
    wrong = router.drops if router.learns else "such calls go past it"
    return line is None if wrong is None else line is not None and wrong in line.text


def _whole(router: Router, engines: list[LoraEngine], folder: Path) -> None:
    urls, port = [engine.url for engine in engines], free_port()
    tree = {
        "engine": {
            "urls": urls,
            "router": f"http://127.0.0.1:{port}",
            "session_header": router.header,
            "name": "tiny",
            "health_interval": 0.3,
        },
        "gate": {"holdout": 0.0},
        "proxy": {"port": 0},
    }
    with process(router.command(folder, port, urls), folder / "router.log"):
        models = f"http://127.0.0.1:{port}/v1/models"
        wait_for(lambda: httpx.get(models, timeout=5, trust_env=False).is_success, 90, 0.3, "the router is up")
        with run_settings(folder / "proxy", tree) as running, Client(running.url) as client:
            write_adapter(running.data_dir / "adapters" / "tiny@1", 8)
            client.add_adapter(AdapterIn(path="tiny@1"))
            wait_for(lambda: client.adapters().live["tiny"] == "tiny@1", 60, 0.2)
            for run in range(RUNS):
                for turn in range(TURNS):
                    body = {"model": "tiny", "messages": [{"role": "user", "content": f"run {run} turn {turn}"}]}
                    headers = {"x-slipstream-episode": f"run{run}"}
                    url = f"{running.url}/v1/chat/completions"
                    reply = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
                    assert reply.status_code == 200, (reply.text, (folder / "router.log").read_text()[-2000:])
                    assert reply.headers["x-slipstream-adapter"] == "tiny@1"
            wait_for(lambda: _said(client, router), 10, 0.3, "the status says what the router does to a call")
            calls = recorded(running.url, "run0", TURNS).call_list
            assert all(call.trainable for call in calls) == (router.drops != "return_token_ids")
    served: dict[str, set[str]] = defaultdict(set)
    for engine in engines:
        for sent, _ in engine.seen:
            if "messages" in sent and str(said := sent["messages"][0]["content"]).startswith("run "):
                assert sent["model"] == "tiny@1"
                served[str(said).split()[1]].add(engine.url)
    assert len(served) == RUNS and all(len(at) == 1 for at in served.values()), "each run stays at its engine"
    assert not router.learns or len(set().union(*served.values())) == 2, "both engines have runs"
