"""`slipstream up`: the engine killed in mid-stream comes back, and one Ctrl-C ends everything."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest
import tomli_w
from tests.support import MODEL, process, slipstream, wait_for
from tests.support.load import body

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


def engine_process(root: int) -> psutil.Process:
    return next(p for p in psutil.Process(root).children(recursive=True) if "vllm.entrypoints" in " ".join(p.cmdline()))


def engine_core(root: int) -> psutil.Process:
    return next(
        p for p in engine_process(root).children(recursive=True) if "EngineCore" in p.name() + " ".join(p.cmdline())
    )


@pytest.mark.parametrize("dies", ["server", "core"])
def test_up_survives_the_engines_death_and_ends_clean(tmp_path: Path, dies: str) -> None:
    data = tmp_path / "data"
    tree = {
        "data_dir": str(data), "proxy": {"port": 0}, "trainer": {"enabled": False},
        "engine": {"model": str(MODEL), "name": "inbox", "max_model_len": 512, "tool_parser": "hermes", "args": ["--max-num-seqs", "64"]},
    }  # fmt: skip
    config, log = tmp_path / "slipstream.toml", tmp_path / "up.log"
    config.write_text(tomli_w.dumps(tree))
    with process(slipstream("up", "--config", str(config)), log) as p:

        def url() -> str:
            assert p.poll() is None, log.read_text()[-3000:]
            base = json.loads((data / "proxy.json").read_text())["url"]
            return base if httpx.get(f"{base}/readyz", timeout=5, trust_env=False).is_success else ""

        base = wait_for(url, 420, 0.5, "up is ready")
        if dies == "server":
            the_server_dies_in_mid_stream(base, p.pid)
        else:  # vLLM's server then ends with exit code 0
            os.kill(engine_core(p.pid).pid, signal.SIGKILL)
            wait_for(lambda: "restarted in" in log.read_text(), 120, 0.5, "its end is seen")
            assert "ended with exit code 0; restarted in" in log.read_text()
        wait_for(lambda: answers(base), 420, 1.0, f"the engine is back: {log.read_text()[-2000:]}")
        tree_pids = [c.pid for c in psutil.Process(p.pid).children(recursive=True)]
        p.send_signal(signal.SIGINT)
        assert p.wait(90) == 0, log.read_text()[-3000:]
        wait_for(
            lambda: not any(psutil.pid_exists(pid) and alive(pid) for pid in tree_pids),
            30,
            0.2,
            "all children are gone",
        )
    assert "engine   | " in log.read_text() and "ending what it started" in log.read_text()


def the_server_dies_in_mid_stream(base: str, up: int) -> None:
    asked = body(True, max_tokens=400, ignore_eos=True)
    with httpx.stream("POST", f"{base}/v1/chat/completions", json=asked, timeout=120, trust_env=False) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        assert next(lines).startswith("data:")
        os.kill(engine_process(up).pid, signal.SIGKILL)
        try:
            rest = list(lines)
        except httpx.TransportError:
            rest = []
    assert "data: [DONE]" not in rest, "the stream pretended to have ended well"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def answers(base: str) -> bool:
    return httpx.post(f"{base}/v1/chat/completions", json=body(False), timeout=60, trust_env=False).is_success
