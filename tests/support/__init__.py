"""What several test files share: free ports, waiting, processes that end with the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "inbox" / "model"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(what: Callable[[], T], timeout: float = 60.0, pause: float = 0.05, said: str = "") -> T:
    """Poll until ``what()`` is truthy; its exceptions count as not yet. The last one is raised at the end."""
    end = time.monotonic() + timeout
    last: BaseException | None = None
    while time.monotonic() < end:
        try:
            if value := what():
                return value
            last = None
        except Exception as e:
            last = e
        time.sleep(pause)
    raise AssertionError(f"{said or 'nothing'} within {timeout} s") from last


async def until(what: Callable[..., Any], timeout: float = 60.0, pause: float = 0.02) -> Any:
    """Poll until ``what()``, or what it resolves to, is truthy, and return that."""
    end = time.monotonic() + timeout
    while True:
        value = what()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"not within {timeout} s"
        await asyncio.sleep(pause)


@contextlib.contextmanager
def process(
    argv: list[str], log: Path, env: dict[str, str] | None = None, grace: float = 20.0, **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is gone afterwards whatever happens. ``more``: as of ``subprocess.Popen``."""
    with log.open("ab") as out:
        p = subprocess.Popen(
            argv,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            **more,
        )
    try:
        yield p
    finally:
        end_process(p, grace)


def end_process(p: subprocess.Popen[bytes], grace: float = 20.0) -> None:
    if p.poll() is None:
        p.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(p.pid, signal.SIGKILL)
    p.wait()


def slipstream(*args: str) -> list[str]:
    return [sys.executable, "-m", "slipstream.cli", *args]


@contextlib.contextmanager
def vllm(
    log: Path,
    *more: str,
    model: Path = MODEL,
    plugin: bool = True,
    api_servers: int = 1,
    port: int = 0,
    routes: bool = True,
) -> Iterator[str]:
    """A vLLM of its own, which calls the model inbox; ``more`` are flags. Yields its URL without /v1.

    ``plugin`` False: without Slipstream's, as of somebody who has not installed it. ``routes`` False: without the
    variable that gives vLLM its routes for adapters.
    """
    import httpx

    from slipstream.config import load_config
    from slipstream.engines.vllm.command import engine_command

    engine = {
        "model": str(model),
        "name": "inbox",
        "max_model_len": 512,
        "tool_parser": "hermes",
        "api_servers": api_servers,
        "port": port,
        "args": ["--max-num-seqs", "64", "--enable-scale-out"],  # what vLLM renders, to compare with
    }
    command = engine_command(load_config(None, env={}, base={"engine": engine}))
    env = command.env if plugin else {**command.env, "VLLM_PLUGINS": ""}
    env = env if routes else {**env, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"}
    with process([*command.argv, *more], log, env) as p:

        def up() -> bool:
            return p.poll() is not None or httpx.get(f"{command.url}/health", timeout=5, trust_env=False).is_success

        wait_for(up, 420, 0.5, "vLLM is up")
        assert p.poll() is None, f"vLLM ended with {p.returncode}: {log.read_text()[-3000:]}"
        yield command.url
