"""What is measured: the mock by itself, nginx, Slipstream and LiteLLM's proxy in front of it, each started on a core of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, ask, free_port, started, wait_for, wait_port
from benchmarks.proxy.interpreter import Interpreter

from slipstream.config import Config
from slipstream_proxy.keys import Keys
from slipstream_proxy.log.segments import list_segments, read_segment

HERE = Path(__file__).parent
CORES = sorted(os.sched_getaffinity(0))
PROXY_CORE, OTHER_CORE = CORES[0], CORES[-1]
LITELLM = "litellm[proxy]==1.108.7"
"""Its Rust code takes no part: its own table of routes leaves chat completions to Python."""
PEERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "vllm-router": ("vllm-router==0.1.17", "--worker-urls", ("--policy", "round_robin")),
    "rllm-model-gateway": ("rllm-model-gateway==0.1.0", "--worker", ("--db-path", "calls.db")),
}
"""Name, which is the program's, → package, the option for the engine, and other options. The first records nothing."""


@dataclass
class Target:
    name: str
    port: int
    pid: int
    key: str = "sk-none"
    config: Config | None = None
    answered: int = 0
    """Calls, warm-up included."""

    collected: int = 0
    """Calls in segments that were read and deleted."""

    def collect(self) -> None:
        """Count and delete finished segments, as the control plane does with what is in the store: else a run would leave 20 GB behind, and the
        disk's write-back of earlier rounds would be measured in later ones.
        """
        if self.config is None:
            return
        for found in list_segments(self.config.spool_dir).values():
            for _, path in found[:-1]:
                self.collected += sum(1 for _ in read_segment(path))
                path.unlink()

    def recorded(self) -> int:
        """Calls in the spool."""
        assert self.config is not None
        segments = [path for found in list_segments(self.config.spool_dir).values() for _, path in found]
        return self.collected + sum(1 for path in segments for _ in read_segment(path))


def start_slipstream(
    stack: contextlib.ExitStack,
    folder: Path,
    engine: str,
    durability: str,
    *,
    model: str = "m",
    interpreter: Interpreter | None = None,
    under: Sequence[object] = (),
) -> Target:
    """One worker with keys, tags, a model map and metrics; every call is recorded. ``under``: the command that runs it."""
    python = interpreter or Interpreter(sys.executable, "", 0.0)
    data = folder / durability
    _, secret = Keys(data / "keys.json").add("bench", ["inference"])
    config = Config.model_validate(
        {
            "data_dir": str(data),
            "proxy": {"durability": durability},
            "engine": {"urls": [engine], "name": model},
            "models": {"gpt-*": {"trained": model}},
        }
    )
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    stack.enter_context(contextlib.closing(sock))
    env = {**python.env, "SLIPSTREAM_CONFIG_JSON": config.model_dump_json(), "SLIPSTREAM_LOG_LEVEL": "warning"}
    command = [*under, python.path, "-m", "slipstream_proxy.data.worker", "0", sock.fileno()]
    log = folder / f"{durability}.log"
    process = started(stack, command, log, core=PROXY_CORE, env=env, pass_fds=(sock.fileno(),))
    port = sock.getsockname()[1]
    wait_port(port)
    return Target(f"slipstream ({durability})", port, process.pid, secret, config)


def start_nginx(stack: contextlib.ExitStack, folder: Path, mock: int) -> Target | None:
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")  # where Debian has it, not in a user's path
    if nginx is None:
        return None
    port, home = free_port(), folder / "nginx"
    home.mkdir()
    text = (HERE / "nginx.conf").read_text().replace("MOCK", str(mock)).replace("LISTEN", str(port))
    (home / "nginx.conf").write_text(text)
    process = started(stack, [nginx, "-p", home, "-c", home / "nginx.conf"], home / "log", core=PROXY_CORE)
    wait_port(port)
    return Target("nginx", port, process.pid)


def program_of(name: str, package: str, program: str) -> Path | None:
    """A program of an environment with this package, made at the first use: its pins would not fit beside ours."""
    home = ROOT / f".venv-{name}"
    if not (home / "ready").exists():
        print(f"installing {package} into {home}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, timeout=120)
            subprocess.run(
                [str(home / "bin" / "python"), "-m", "pip", "install", "-q", package], check=True, timeout=600
            )
        except (subprocess.SubprocessError, OSError) as e:
            print(f"no {name}: {e}", file=sys.stderr)
            return None
        (home / "ready").touch()
    return home / "bin" / program


def start_peer(stack: contextlib.ExitStack, folder: Path, mock: int, name: str) -> Target | None:
    """One of ``PEERS``, one process; None where it cannot be installed or does not start."""
    package, engine_flag, flags = PEERS[name]
    program = program_of(name, package, name)
    if program is None:
        return None
    port, home = free_port(), folder / name
    home.mkdir()
    command: list[object] = [program, "--host", "127.0.0.1", "--port", port, engine_flag, f"http://127.0.0.1:{mock}"]
    process = started(stack, [*command, *flags, "--log-level", "error"], home / "log", core=PROXY_CORE, cwd=home)
    call = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    try:
        wait_for(lambda: ask("POST", f"http://127.0.0.1:{port}/v1/chat/completions", call, timeout=20), 60, 0.5)
    except AssertionError:
        print((home / "log").read_text(errors="replace")[-2000:], file=sys.stderr)
        return None
    return Target(name, port, process.pid)


def start_litellm(stack: contextlib.ExitStack, folder: Path, mock: int) -> Target | None:
    """LiteLLM's proxy, one worker, in an environment of its own; None where it cannot be installed or does not start."""
    python = program_of("litellm", LITELLM, "python")
    if python is None:
        return None
    port, home = free_port(), folder / "litellm"
    home.mkdir()
    entry = {"model": "openai/m", "api_base": f"http://127.0.0.1:{mock}/v1", "api_key": "sk-none"}
    config = {"model_list": [{"model_name": "gpt-4o", "litellm_params": entry}], "general_settings": {}}
    (home / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
    env["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # open to this machine, as nginx is
    command: list[object] = [python, "-c", "from litellm import run_server; run_server()"]
    command += ["--config", home / "config.yaml", "--host", "127.0.0.1", "--port", port, "--telemetry", "False"]
    process = started(stack, command, home / "log", core=PROXY_CORE, env=env, cwd=home)
    alive = f"http://127.0.0.1:{port}/health/liveliness"
    try:
        wait_for(lambda: process.poll() is not None or ask("GET", alive, timeout=2), 120, 0.2, "LiteLLM does not start")
    except AssertionError:
        print((home / "log").read_text(errors="replace")[-2000:], file=sys.stderr)
        return None
    return Target("litellm", port, process.pid) if process.poll() is None else None
