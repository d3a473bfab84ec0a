"""Real vLLMs that share no folder, behind vllm-router: adapters reach each of them, and calls go through the router."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import httpx
import pytest
from tests.support import free_port, process, vllm, wait_for
from tests.support.adapters import make_adapter
from tests.support.running import run_proxy

from slipstream.client import Client
from slipstream.contract import AdapterIn

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm_router") is None, reason="vllm-router is not installed"),
]


def test_two_replicas_behind_a_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, at = free_port(), free_port()
    monkeypatch.setenv("SLIPSTREAM_ENGINE_ADAPTERS_FROM", f"http://127.0.0.1:{port}")
    with contextlib.ExitStack() as stack:
        urls = []
        for n in range(2):
            short = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))  # vLLM's sockets need short paths
            monkeypatch.setenv("TMPDIR", short)  # each has a cache of its own
            urls.append(stack.enter_context(vllm(tmp_path / f"engine{n}.log")))
        command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(at)]
        more = ["--worker-urls", *urls, "--policy", "consistent_hash", "--prometheus-port", str(free_port())]
        stack.enter_context(process([*command, *more], tmp_path / "router.log"))
        router = f"http://127.0.0.1:{at}"
        wait_for(lambda: httpx.get(f"{router}/health", timeout=5, trust_env=False).is_success, 60, 0.5, "it is up")
        engine = {"urls": urls, "router": router, "adapters_dir": "/nowhere"}
        running = stack.enter_context(run_proxy(tmp_path / "proxy", urls[0], engine=engine, proxy={"port": port}))
        make_adapter(running.data_dir / "adapters" / "inbox@1", 3)
        with Client(running.url) as client:
            client.add_adapter(AdapterIn(path="inbox@1"))
            wait_for(lambda: client.adapters().live["inbox"] == "inbox@1", 120, 0.5, "it is live")
        seen: dict[str, set[tuple[int, str]]] = defaultdict(set)
        for n in range(24):
            body = {"model": "inbox", "messages": [{"role": "user", "content": f"hello {n}"}], "max_tokens": 4}
            headers = {"x-slipstream-episode": f"run{n % 8}"}
            reply = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
            seen[headers["x-slipstream-episode"]].add((reply.status_code, reply.headers["x-slipstream-adapter"]))
        assert set().union(*seen.values()) == {(200, "inbox@1")}
        for url in urls:
            served = re.findall(
                r"^vllm:request_success_total\{.*\} ([0-9.e+]+)$", httpx.get(f"{url}/metrics").text, re.M
            )
            assert sum(map(float, served)) > 4, "the router sent nothing there"
        assert httpx.post(f"{urls[1]}/v1/unload_lora_adapter", json={"lora_name": "inbox@1"}).is_success
        one = {"model": "inbox@1", "prompt": "a", "max_tokens": 1}
        found = httpx.post(f"{urls[1]}/v1/completions", json=one, timeout=120)
        assert found.status_code == 200, "an engine that was not told of a version resolves it by itself"
        models = json.loads(httpx.get(f"{urls[1]}/v1/models").text)["data"]
        assert {"/nowhere/inbox@1"} == {m["root"] for m in models if m["id"] == "inbox@1"}
