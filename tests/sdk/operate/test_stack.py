"""The order in which things start, and what is said when one does not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support import MODEL, process, slipstream, until, wait_for
from tests.support.server import Server

from slipstream.client import Client
from slipstream.config import CONFIG_ENV, Config, load_config
from slipstream.contract import Status
from slipstream.errors import StartError
from slipstream.operate.run import stack as module
from slipstream.operate.run.stack import _self, _sidecar, begin_engine, engine_answers, own_key, start_stack
from slipstream.shared.processes import supervisor as keeping
from slipstream.shared.processes.health import answers
from slipstream.shared.processes.proxy_file import SETTLED_FILE
from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Child, Supervisor

FAKE_VLLM = """
import argparse, http.server, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
args, _ = parser.parse_known_args()
print(os.environ.get("FAKE_SAYS", ""), flush=True)
time.sleep(float(os.environ.get("FAKE_LOADS_SECONDS", "0")))
if os.environ.get("FAKE_DIES"):
    print("loading")
    print(os.environ["FAKE_DIES"], file=sys.stderr)
    sys.exit(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"object": "list", "data": [{"id": "inbox", "object": "model", "max_model_len": 512}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
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


def test_children_are_ourselves_with_the_same_configuration(tmp_path: Path) -> None:
    wanted = config(tmp_path)
    child = _self("trainer", wanted, "--url", "http://x")
    assert child.argv[1:] == ["-P", "-m", "slipstream.cli", "trainer", "--url", "http://x"]
    assert Config.model_validate_json(child.env[CONFIG_ENV]) == wanted


async def start_engine(wanted: Config, supervisor: Supervisor, say: Said) -> tuple[Child, str]:
    child, url = begin_engine(wanted, supervisor, say)
    await engine_answers(child, url, wanted, supervisor, say)
    return child, url


async def test_the_engine_is_up_when_it_answers(fake_vllm: Path) -> None:
    said = Said()
    supervisor = Supervisor(Said())
    try:
        child, url = await start_engine(config(fake_vllm), supervisor, said)
        assert await answers(f"{url}/health")
        assert child.restart
        assert said[0] == f"starting vLLM with {MODEL} (a minute or so)"
        assert "tool parser: hermes" in said
    finally:
        await supervisor.stop()
    assert child.process is not None
    assert child.process.returncode is not None


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("ValueError: max_model_len is too large", "\nset engine.max_model_len lower.*"),
        ("TypeError: Error: --tool-call-parser x does not fit", "\nset engine.tool_parser to .*=none.*"),
    ],
)
async def test_an_engine_that_dies_is_not_tried_again(
    fake_vllm: Path, monkeypatch: pytest.MonkeyPatch, words: str, fix: str
) -> None:
    monkeypatch.setenv("FAKE_DIES", words)
    supervisor = Supervisor(Said())
    try:
        with pytest.raises(StartError, match=f"^the engine did not start: {words}{fix}$"):
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


async def test_an_engine_that_starts_for_long_says_how_far_it_is(
    fake_vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_REPORT_INTERVAL_S", 0.2)
    monkeypatch.setenv("FAKE_LOADS_SECONDS", "2")
    monkeypatch.setenv("FAKE_SAYS", "(EngineCore_0 pid=7) INFO 12-01 10:00:00 [loader.py:7] Loading weights")
    said, supervisor = Said(), Supervisor(Said())
    try:
        await start_engine(config(fake_vllm), supervisor, said)
    finally:
        await supervisor.stop()
    assert any(line.startswith("the engine starts (") and line.endswith(" s so far): Loading weights") for line in said)


async def test_a_signal_while_the_engine_starts(fake_vllm: Path) -> None:
    supervisor = Supervisor(Said())
    supervisor.stopping.set()
    await start_engine(config(fake_vllm), supervisor, Said())
    await supervisor.stop()


def test_judge_and_trainer_get_a_key_where_keys_are(tmp_path: Path) -> None:
    from slipstream_proxy.keys import Keys

    wanted = config(tmp_path)
    first = own_key(wanted)["SLIPSTREAM_API_KEY"]
    assert len(Keys(wanted.keys_file)) == 0, "the proxy stays open"
    keys = Keys(wanted.keys_file)
    mine, _ = keys.add("mine", ["admin"])
    assert Keys(wanted.keys_file).check(first) is not None, "it is in force with the first key, and nobody restarts"
    second = own_key(wanted)["SLIPSTREAM_API_KEY"]
    after = Keys(wanted.keys_file)
    assert after.check(first) is None  # of a run before
    key = after.check(second)
    assert key is not None
    assert set(key.scopes) == {"judge", "trainer", "reward"}
    assert [k.id for k in after.list() if not k.name.startswith("up-")] == [mine]
    secret = own_key(config(tmp_path, "judge.model=self"))["SLIPSTREAM_API_KEY"]
    own = Keys(wanted.keys_file).check(secret)
    assert own is not None and own.may("inference"), "it asks the agents' own engine"
    assert os.path.exists(wanted.keys_file)


def test_the_trainer_alone_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    wanted = config(tmp_path, "trainer.python=/opt/unsloth/bin/python")
    assert _sidecar("trainer", wanted, {}, "--wait").argv[:5] == [
        "/opt/unsloth/bin/python",
        "-P",
        "-m",
        "slipstream.cli",
        "trainer",
    ]
    assert _sidecar("judge", wanted, {}).argv[0] == sys.executable


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


async def test_the_proxy_starts_beside_the_engine(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start takes seconds, in which agents would be answered by a version that nobody trains yet."""
    monkeypatch.setenv("FAKE_LOADS_SECONDS", "5")
    lines = Said()
    supervisor = Supervisor(lines)
    wanted = config(fake_vllm, "trainer.enabled=false")
    try:
        stack = await start_stack(wanted, supervisor, Said())
        assert stack.engine is not None and stack.engine.process is not None and stack.proxy.process is not None
        with Client(stack.url) as client:
            # workers serve before a slow control plane has looked at the engine again
            await until(lambda: asyncio.to_thread(lambda: all(e["ok"] for e in client.status().engines)), timeout=10.0)
        assert not [line for line in lines if "warning" in line and "down" in line], "an engine that starts is not down"
        assert (wanted.root / SETTLED_FILE).exists(), (
            "engines that say nothing of their memory have it when they answer"
        )
    finally:
        await supervisor.stop()


async def test_a_proxy_that_can_not_start_says_why(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, where a folder is needed")
    supervisor = Supervisor(Said())
    wanted = config(tmp_path, f'engine.urls=["{server.url}"]', "trainer.enabled=false")
    with pytest.raises(StartError, match="^the proxy did not start: "):
        await start_stack(wanted, supervisor, Said())
    await supervisor.stop()
    assert supervisor.children[0].gave_up


@pytest.mark.slow
async def test_an_engine_that_is_not_there_is_named(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROXY_TIMEOUT_SECONDS", 12.0)
    server.on("GET", "/health", {"error": "starting"}, status=503)
    supervisor = Supervisor(Said())
    wanted = config(tmp_path, f'engine.urls=["{server.url}"]', "trainer.enabled=false")
    try:
        with pytest.raises(StartError, match=f"no engine is up: none of {server.url} answered /health for 12 s"):
            await start_stack(wanted, supervisor, Said())
    finally:
        await supervisor.stop()


# --- faults: real processes under `slipstream up` ---

HEALTH = """
import argparse, http.server, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
args, _ = parser.parse_known_args()
home = pathlib.Path(os.environ["FAULTS"])
with open(home / "engine.starts", "a") as f:
    f.write(f"{os.getpid()}\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if (home / "leave").exists():
            code = int((home / "leave").read_text())
            (home / "leave").unlink()
            os._exit(code)
        sick = self.path == "/health" and (home / "sick").exists()
        body = b'{"object": "list", "data": [{"id": "inbox", "object": "model", "max_model_len": 512}]}'
        self.send_response(503 if sick else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()
"""
SICK_JUDGE = """
import os, pathlib
home = pathlib.Path(os.environ["FAULTS"])
with open(home / "judge.starts", "a") as f:
    f.write("x")
print("RuntimeError: the judge is sick", flush=True)
os._exit(int((home / "judge.code").read_text()))
"""


@contextlib.contextmanager
def running_up(fake_vllm: Path, *flags: str) -> Iterator[tuple[str, Path]]:
    """``slipstream up`` in the fake engine's folder. Yields the proxy's URL and the log."""
    settings = [f"data_dir={fake_vllm}/data", f"engine.model={MODEL}", "engine.name=inbox", "proxy.port=0", *flags]
    log = fake_vllm / "up.log"
    with process(slipstream("up", *(a for f in settings for a in ("--set", f))), log) as p:

        def url() -> str:
            assert p.poll() is None, log.read_text()
            return (
                json.loads((fake_vllm / "data" / "proxy.json").read_text())["url"]
                if "ready: " in log.read_text()
                else ""
            )

        yield wait_for(url, 120, 0.1, "up is ready"), log
        assert p.poll() is None, log.read_text()
        p.send_signal(signal.SIGINT)
        assert p.wait(60) == 0, log.read_text()


def status(url: str) -> Status:
    with Client(url) as client:
        return client.status()


@pytest.fixture
def faulty(fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = fake_vllm / "program"
    (program / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text(HEALTH)
    (program / "sick.py").write_text(SICK_JUDGE)
    (fake_vllm / "faults").mkdir()
    monkeypatch.setenv("FAULTS", str(fake_vllm / "faults"))
    return fake_vllm


def test_a_judge_that_exits_leaves_engine_and_proxy_serving(faulty: Path) -> None:
    home = faulty / "faults"
    (home / "judge.code").write_text("1")
    with running_up(faulty, "trainer.enabled=false", "judge.function=sick:judge") as (url, log):
        for code in (1, 2, 139, 0):
            (home / "judge.code").write_text(str(code))
            state = "restarting" if code else "ended"

            def seen() -> Status | None:
                found = status(url)
                return found if [(s.state, s.exit_code) for s in found.sidecars] == [(state, code)] else None

            found = wait_for(seen, 60, 0.1, f"the judge is {state} after exit code {code}")
            assert found is not None
            assert found.engines[0]["ok"]
            assert httpx.get(f"{url}/v1/models", trust_env=False).is_success
            if code:
                (line,) = (w for w in found.waiting if w.startswith("the judge ended with exit code"))
                assert "RuntimeError: the judge is sick" in line
                down = 'slipstream_sidecar_up{name="judge"} 0.0'  # between two starts
                metrics = f"{url}/metrics"
                wait_for(lambda: down in httpx.get(metrics, trust_env=False).text, 60, 0.1, "the metric shows it")
        assert len((home / "engine.starts").read_text().splitlines()) == 1
    assert not (faulty / "data" / "sidecars.json").exists()


async def test_a_judge_that_never_starts_stays_down(
    faulty: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (faulty / "faults" / "judge.code").write_text("2")
    monkeypatch.setattr(module, "SIDECAR_FAILURES", 3)
    monkeypatch.setattr(keeping, "FIRST_PAUSE", 0.01)
    server.on("GET", "/health")
    server.on("GET", "/v1/models", {"object": "list", "data": [{"id": "inbox", "object": "model"}]})
    wanted = config(faulty, f'engine.urls=["{server.url}"]', "trainer.enabled=false", "judge.function=sick:judge")
    report = SidecarFile(wanted.root)
    supervisor = Supervisor(Said(), report)
    try:
        found = await start_stack(wanted, supervisor, Said())
        assert found.judge is not None
        await until(lambda: found.judge.gave_up)
        seen = await asyncio.to_thread(status, found.url)
        assert [(s.name, s.state, s.exit_code, s.starts) for s in seen.sidecars] == [("judge", "down", 2, 3)]
        said = [w for w in seen.waiting if w.startswith("the judge is down after 3 starts: it ended with exit code 2")]
        assert len(said) == 1
        assert seen.engines[0]["ok"]
        assert not supervisor.stopping.is_set()
    finally:
        await supervisor.stop()


def test_an_engine_that_exits_is_started_again_whatever_its_code(faulty: Path) -> None:
    starts = faulty / "faults" / "engine.starts"
    with running_up(faulty, "trainer.enabled=false", "engine.health_interval=0.2") as (url, log):
        for n, code in enumerate((0, 1), 2):
            (faulty / "faults" / "code").write_text(str(code))
            (faulty / "faults" / "code").rename(faulty / "faults" / "leave")
            wait_for(lambda: len(starts.read_text().splitlines()) == n, 60, 0.1, "the engine starts again")
            wait_for(lambda: status(url).engines[0]["ok"], 60, 0.1, "it is taken back")
            assert f"ended with exit code {code}; restarted in" in log.read_text()


def test_an_engine_that_answers_503_for_long_is_restarted(faulty: Path) -> None:
    """Its process lives, and so does its server."""
    starts = faulty / "faults" / "engine.starts"
    flags = ("trainer.enabled=false", "engine.health_interval=0.2", "engine.hang_timeout=1")
    with running_up(faulty, *flags) as (url, log):
        (faulty / "faults" / "sick").touch()
        wait_for(lambda: "it is ended and restarted" in log.read_text(), 60, 0.1, "it is seen")
        (faulty / "faults" / "sick").unlink()
        wait_for(lambda: len(starts.read_text().splitlines()) == 2, 90, 0.1, "the engine starts again")
        wait_for(lambda: status(url).engines[0]["ok"], 60, 0.1, "it is taken back")


async def test_a_stopped_engine_is_killed_and_restarted(faulty: Path) -> None:
    """Its process lives, and nothing answers at all, nor does it end when it is asked to."""
    lines = Said()
    supervisor = Supervisor(lines)
    wanted = config(faulty, "engine.health_interval=0.2", "engine.hang_timeout=1")
    try:
        child, url = await start_engine(wanted, supervisor, Said())
        assert child.grace >= 30.0, "it may end politely"
        child.grace = 1.0  # so long as the test waits
        assert child.process is not None
        os.kill(child.process.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while child.starts < 2 or not await answers(f"{url}/health"):
                await asyncio.sleep(0.05)
        seen = "engine has not answered"
        order = [next(i for i, line in enumerate(lines) if word in line) for word in (seen, "killed", "restarted in")]
        assert order == sorted(order), lines
    finally:
        await supervisor.stop()
