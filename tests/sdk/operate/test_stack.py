"""The order in which things start, and what is said when one does not."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from tests.sdk.server import Server
from tests.support import MODEL, free_port

from slipstream.client import Client
from slipstream.config import Config, load_config
from slipstream.errors import StartError
from slipstream.operate.stack import (
    CONFIG_ENV,
    _answers,
    _last_words,
    _own_key,
    _self,
    check_port,
    start_engine,
    start_stack,
)
from slipstream.operate.supervisor import Child, Supervisor

FAKE_VLLM = """
import argparse, http.server, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
args, _ = parser.parse_known_args()
if os.environ.get("FAKE_DIES"):
    print("loading")
    print("ValueError: max_model_len is too large", file=sys.stderr)
    sys.exit(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program where vLLM would be: ``python -m`` looks into the current folder first."""
    package = tmp_path / "program" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:2]):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(FAKE_VLLM)
    monkeypatch.chdir(tmp_path / "program")
    monkeypatch.setenv("LD_PRELOAD", "")
    return tmp_path


def config(tmp_path: Path, *flags: str) -> Config:
    return load_config(
        env={},
        flags=[f"data_dir={tmp_path}/data", f"engine.model={MODEL}", "engine.name=inbox", "proxy.port=0", *flags],
    )


class Said(list[str]):
    def __call__(self, *what: str) -> None:
        self.append(" ".join(what))


def test_check_port() -> None:
    check_port("127.0.0.1", 0)
    check_port("127.0.0.1", free_port())
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(StartError) as e:
            check_port("127.0.0.1", port)
    assert str(e.value).startswith(f"proxy.port: 127.0.0.1:{port} can't be bound (")
    with pytest.raises(StartError, match=r"203\.0\.113\.1:8100 can't be bound"):
        check_port("203.0.113.1", 8100)


async def test_nobody_answers() -> None:
    assert not await _answers(f"http://127.0.0.1:{free_port()}/health")


def test_children_are_ourselves_with_the_same_configuration(tmp_path: Path) -> None:
    wanted = config(tmp_path)
    child = _self("trainer", wanted, "--url", "http://x")
    assert child.argv[1:] == ["-m", "slipstream.cli", "trainer", "--url", "http://x"]
    assert Config.model_validate_json(child.env[CONFIG_ENV]) == wanted


def test_last_words() -> None:
    child = Child("engine", [])
    assert _last_words(child) == "it said nothing"
    child.tail.extend(["one", "two "])
    assert _last_words(child) == "two"
    child.tail.extend(["ValueError: no", "goodbye"])
    assert _last_words(child) == "ValueError: no"


async def test_the_engine_is_up_when_it_answers(fake_vllm: Path) -> None:
    said = Said()
    supervisor = Supervisor(Said())
    try:
        child, url = await start_engine(config(fake_vllm), supervisor, said)
        assert await _answers(f"{url}/health")
        assert child.restart
        assert said[0] == f"starting vLLM with {MODEL} (a minute or so)"
        assert "tool parser: hermes" in said
    finally:
        await supervisor.stop()
    assert child.process is not None
    assert child.process.returncode is not None


async def test_an_engine_that_dies_is_not_tried_again(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DIES", "1")
    supervisor = Supervisor(Said())
    try:
        with pytest.raises(StartError, match=r"^the engine did not start: ValueError: max_model_len is too large$"):
            await start_engine(config(fake_vllm), supervisor, Said())
        assert supervisor.children[0].starts == 1
    finally:
        await supervisor.stop()


async def test_a_model_that_is_none_says_nothing_before(tmp_path: Path) -> None:
    said = Said()
    supervisor = Supervisor(Said())
    with pytest.raises(StartError, match="no such folder"):
        await start_stack(config(tmp_path, "engine.model=./none"), supervisor, said)
    assert said == []
    assert supervisor.children == []


async def test_a_signal_while_the_engine_starts(fake_vllm: Path) -> None:
    supervisor = Supervisor(Said())
    supervisor.stopping.set()
    await start_engine(config(fake_vllm), supervisor, Said())
    await supervisor.stop()


def test_judge_and_trainer_get_a_key_where_keys_are(tmp_path: Path) -> None:
    from slipstream_proxy.keys import Keys

    wanted = config(tmp_path)
    assert _own_key(wanted) == {}
    keys = Keys(wanted.keys_file)
    mine, _ = keys.add("mine", ["admin"])
    first = _own_key(wanted)["SLIPSTREAM_API_KEY"]
    second = _own_key(wanted)["SLIPSTREAM_API_KEY"]
    after = Keys(wanted.keys_file)
    assert after.check(first) is None  # of a run before
    key = after.check(second)
    assert key is not None
    assert set(key.scopes) == {"judge", "trainer", "reward"}
    assert [k.id for k in after.list() if not k.name.startswith("up-")] == [mine]
    assert os.path.exists(wanted.keys_file)


async def test_the_real_proxy_beside_an_engine_that_runs(server: Server, tmp_path: Path) -> None:
    server.on("GET", "/health")
    server.on(
        "GET", "/v1/models", {"object": "list", "data": [{"id": "inbox", "object": "model", "max_model_len": 512}]}
    )
    lines = Said()
    supervisor = Supervisor(lines)
    wanted = config(tmp_path, f'engine.urls=["{server.url}"]', "trainer.enabled=false")
    try:
        stack = await start_stack(wanted, supervisor, Said())
        assert (stack.engine, stack.trainer, stack.judge) == (None, None, None)
        with Client(stack.url) as client:
            status = await asyncio.to_thread(client.status)
        assert status.models == {"inbox": "inbox"}
        assert [e["url"] for e in status.engines] == [server.url]
    finally:
        await supervisor.stop()
    assert stack.proxy.exit_code == 0, lines


async def test_a_proxy_that_can_not_start_says_why(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, where a folder is needed")
    supervisor = Supervisor(Said())
    wanted = config(tmp_path, f'engine.urls=["{server.url}"]', "trainer.enabled=false")
    with pytest.raises(StartError, match="^the proxy did not start: "):
        await start_stack(wanted, supervisor, Said())
    await supervisor.stop()
    assert supervisor.children[0].gave_up
