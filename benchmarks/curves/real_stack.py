"""`slipstream up` on a model, for the benches that let many agents work on it: started, waited for, read and ended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.shared.machine import has_gpu

ROOT = Path(__file__).resolve().parents[2]
NAME = "real"
READY = "ready: OPENAI_BASE_URL="
"""What `slipstream up` says before its address."""
SHUTDOWN = 12.0
"""Seconds kept for its end."""
GPU_ARGS = ["--max-num-seqs", "256", "--attention-backend", "FLASH_ATTN"]
"""vLLM's own graphs and compiler. Without graphs (`--enforce-eager`) one core, which launches the kernels of ten layers
and their adapters, allows 50 steps of the engine a second. Graphs of whole steps without the compiler gave wrong
log-probabilities (0.1 to 0.6 nats a token off; vLLM 0.25.1)."""


def engine_args() -> list[str]:
    """What vLLM is given beside the defaults: nothing without an NVIDIA GPU."""
    return GPU_ARGS if has_gpu() else []


def get(url: str) -> str:
    """The text at a URL."""
    with urllib.request.urlopen(url, timeout=15) as reply:
        return str(reply.read().decode())


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a process, and after these seconds all that it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass
class Stack:
    """A running `slipstream up`."""

    process: subprocess.Popen[bytes]
    log: Path
    engine: str
    url: str = ""

    @property
    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text(errors="replace")

    def until(self, words: str, end: float) -> bool:
        """Wait until it prints these words. False: the time is over, or it has ended."""
        while time.monotonic() < end:
            if words in self.text:
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.25)
        return False

    def ready(self, end: float) -> bool:
        """Wait until agents can be served, and note where. False: as ``until``."""
        if self.until(READY, end):
            self.url = self.text.split(READY)[1].split("/v1")[0].strip()
        return bool(self.url)

    def events(self) -> list[dict[str, Any]]:
        """What trainer and proxy told so far; none where the proxy does not answer."""
        try:
            text = get(f"{self.url}/slipstream/v1/training/events")
        except (urllib.error.URLError, TimeoutError, OSError):
            return []
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def stop(self) -> None:
        """End it."""
        end(self.process, SHUTDOWN)


def quiet_port() -> int:
    """A free port below those that the system gives to outgoing connections: the engine binds it a minute later, and
    agents of other benches may open thousands meanwhile."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise OSError("no port from 20000 to 32000 is free")


def start(model: Path, phase: str, folder: Path, log: Path, settings: list[str]) -> Stack:
    """`slipstream up` on the model, not waited for."""
    port = quiet_port()
    chosen = [
        f"data_dir={folder}", f"engine.name={NAME}", f"engine.port={port}", "proxy.port=0",
        f"engine.share={'true' if phase == 'share' else 'false'}",
        f"engine.args={json.dumps(engine_args())}", *settings,
    ]  # fmt: skip
    process = launch(["up", "--model", str(model)], chosen, log)
    return Stack(process, log, f"http://127.0.0.1:{port}")


def launch(argv: list[str], settings: list[str], log: Path, **env: str) -> subprocess.Popen[bytes]:
    """A command of this checkout, not waited for; what it prints goes to ``log``."""
    whole = [sys.executable, "-m", "slipstream.cli", *argv]
    for setting in settings:
        whole += ["--set", setting]
    own = [str(ROOT / part) for part in ("sdk", "proxy", "judge", "trainer", "engine")]
    path = os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **env}
    with log.open("wb") as out:
        return subprocess.Popen(whole, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=env)
