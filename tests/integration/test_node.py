"""The openai client for Node. It is fetched once, into the user's cache; where npm's registry cannot be reached there is nothing to test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.running import recorded

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
VERSION = "7.57.0"
SCRIPT = Path(__file__).with_name("node_client.mjs")


@pytest.fixture(scope="module")
def proxy(client_proxy):
    return client_proxy


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder whose node_modules has the client."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node is not installed")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipstream-tests" / f"openai-{VERSION}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
    except OSError:
        pytest.skip("there is no place for a cache")
    entry = folder / "node_modules" / "openai" / "package.json"
    for _ in range(3):
        if entry.is_file() and json.loads(entry.read_text())["version"] == VERSION:
            return folder
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), f"openai@{VERSION}"]
        try:
            subprocess.run(command, capture_output=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            break
    if not entry.is_file():
        pytest.skip("npm's registry cannot be reached")
    return folder


def test_openai_for_node(proxy, package: Path) -> None:
    node = shutil.which("node")
    assert node
    environment = {**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    ran = subprocess.run(
        [node, str(SCRIPT), str(package), proxy.url],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert ran.returncode == 0, ran.stderr
    got = json.loads(ran.stdout)
    assert got["chat"]["model"] == "gpt-4o-mini"
    assert got["chat"]["episode"] == "node-chat"
    assert got["helper"] == {"choices": 1}
    assert got["responses"]["status"] in {"completed", "incomplete"}
    assert got["responses"]["text"] == "string"
    assert got["kinds"] == ["response.created", "response.completed"]
    assert got["error"] == {"status": 404, "name": "NotFoundError"}
    for name, tokens in (("node-chat", "chat"), ("node-stream", "stream"), ("node-responses", "responses")):
        call = recorded(proxy.url, name).call_list[0]
        assert call.trainable, call.untrainable_reason
        assert len(call.completion_ids[0]) == got[tokens]["tokens"]
    assert recorded(proxy.url, "node-chat").task == "node"
    recorded(proxy.url, "node-abort")
