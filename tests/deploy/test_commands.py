"""The very commands of the images, in a clean environment each, with the compose file's environment: they start, find each other and work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.support import MODEL, clean, free_port, process, wait_for
from tests.support.fake_engine import FakeEngine
from tests.support.postgres import postgres  # noqa: F401 - a fixture
from tests.support.rendering import DEPLOY, REQUIRED, compose

pytestmark = [pytest.mark.engine, pytest.mark.deploy, pytest.mark.timeout(300)]
PARTS = ("proxy", "judge", "trainer")
PORTS = {"proxy": 8100, "judge": 9101, "trainer": 9102}


class Stack:
    """Compose's volumes as folders, its host names as loopback ports; everything else is the compose file's."""

    def __init__(self, folder: Path, engine: str, store: str) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in PORTS}
        chosen = {
            "MODEL": str(MODEL),
            "MODEL_NAME": "tiny",
            "JUDGE_MODEL": "openai/some-model",
            "JUDGE_API_KEY": "none",
        }
        self.services = compose({**REQUIRED, **chosen})["services"]
        settings = (DEPLOY / "slipstream.toml").read_text()
        for inside in ("/data", "/adapters"):
            assert f'"{inside}"' in settings
            settings = settings.replace(f'"{inside}"', f'"{folder}{inside}"')
        for name, port in PORTS.items():
            assert f"port = {port}" in settings
            settings = settings.replace(f"port = {port}", f"port = {self.ports[name]}")
        (folder / "slipstream.toml").write_text(settings)
        (folder / "home").mkdir()
        self.swaps = {
            "http://engine:8000": engine, "postgresql://slipstream:pw-of-a-test@postgres:5432/slipstream": store, "http://proxy:8100": self.url("proxy"),
            "/etc/slipstream/slipstream.toml": f"{folder}/slipstream.toml", "/keys/": f"{folder}/keys/", "/tmp/judge": f"{folder}/judge", "/hf": f"{folder}/hf",
        }  # fmt: skip

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def swapped(self, text: str) -> str:
        for inside, outside in self.swaps.items():
            text = text.replace(inside, outside)
        return text

    def command(self, name: str) -> list[str]:
        return ["sh", str(DEPLOY / "docker" / "entrypoint.sh"), *map(self.swapped, self.services[name]["command"])]

    def environment(self, bin: Path, name: str = "") -> dict[str, str]:
        """The service's, and of this machine's nothing but what no machine is without."""
        given = self.services[name]["environment"] if name else {}
        own = {
            "PATH": f"{bin}:/usr/bin:/bin",
            "HOME": f"{self.folder}/home",
            "NO_PROXY": "127.0.0.1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        return own | {k: self.swapped(str(v)) for k, v in given.items()}


async def test_the_commands_of_the_compose_file(tmp_path: Path, postgres: str, monkeypatch) -> None:  # noqa: F811
    import os

    for name in list(os.environ):  # a container begins with none of ours
        if name not in {"PATH", "HOME", "LANG", "TMPDIR", "PYTEST_CURRENT_TEST"}:
            monkeypatch.delenv(name)
    bins = {part: clean.make(tmp_path / f"{part}-venv", part) for part in PARTS}
    for part in ("proxy", "judge"):
        seen = subprocess.run(
            [bins[part] / "python", "-c", "import torch"], check=False, capture_output=True, text=True, timeout=60
        )
        assert "No module named 'torch'" in seen.stderr
    engine = await FakeEngine().start()
    stack = Stack(tmp_path, engine.url, postgres)
    keys = ["sh", str(DEPLOY / "docker" / "keys.sh"), f"{tmp_path}/data", f"{tmp_path}/keys"]
    subprocess.run(keys, check=True, env=stack.environment(bins["proxy"]), timeout=120)
    logs = {part: tmp_path / f"{part}.log" for part in PARTS}
    try:
        with contextlib.ExitStack() as running:
            started = {
                p: running.enter_context(process(stack.command(p), logs[p], stack.environment(bins[p], p)))
                for p in PARTS
            }

            def answers(part: str, path: str) -> bool:
                assert started[part].poll() is None, logs[part].read_text()[-3000:]
                return httpx.get(stack.url(part) + path, timeout=10, trust_env=False).is_success

            for part, path in (("proxy", "/readyz"), ("judge", "/metrics"), ("trainer", "/metrics")):
                await asyncio.to_thread(wait_for, lambda: answers(part, path), 180, 0.2, f"{part} is up")
            await asyncio.to_thread(use, stack)
            said = {p: logs[p].read_text() for p in PARTS}
        assert all(p.returncode == 0 for p in started.values()), {
            p: (s.returncode, logs[p].read_text()[-1500:]) for p, s in started.items()
        }
    finally:
        await engine.stop()
    for part in PARTS:
        lines = [x for x in said[part].splitlines() if x.startswith("{")]
        assert lines and all("level" in json.loads(x) for x in lines), "SLIPSTREAM_LOG_FORMAT=json"


def use(stack: Stack) -> None:
    """With the agent's key a call is answered, and it is in PostgreSQL; without one it is not."""
    key = (stack.folder / "keys" / "agent").read_text().strip()
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    with httpx.Client(base_url=stack.url("proxy"), timeout=30, trust_env=False) as http:
        assert http.post("/v1/chat/completions", json=ask).status_code == 401
        own = {"authorization": f"Bearer {key}", "x-slipstream-episode": "e1"}
        assert http.post("/v1/chat/completions", json=ask, headers=own).is_success
        admin = {"authorization": f"Bearer {(stack.folder / 'keys' / 'admin').read_text().strip()}"}
        wait_for(
            lambda: http.get("/slipstream/v1/status", headers=admin).json()["calls"] == 1, 60, 0.1, "the call is stored"
        )
