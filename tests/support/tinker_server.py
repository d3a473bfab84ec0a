"""The real open server of the Tinker API (SkyRL's, on its JAX backend), as a process of an environment of its own.

python3.12 -m venv skyrl && skyrl/bin/pip install 'skyrl[tinker,jax]==0.3.0' 'tinker==0.24.1'
pip install 'tinker==0.24.1'
SLIPSTREAM_TEST_SKYRL=$PWD/skyrl/bin/python pytest tests/plugins/tinker
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from tests.support import free_port

SERVE_SOURCE = '''
"""The API reads its parent's command line, in which it wants a `--`."""
import signal, subprocess, sys
server = subprocess.Popen([sys.executable, "-m", "skyrl.tinker.api", *sys.argv[sys.argv.index("--") + 1:]])
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: server.terminate())
sys.exit(server.wait())
'''
UV_SOURCE = """#!/bin/sh
# the server starts its engine by `uv run … -m skyrl.tinker.engine …`: the packages are installed already
while [ "$1" != "-m" ]; do shift; done
exec "$SKYRL_PYTHON" "$@"
"""
READY_TIMEOUT_S = 180.0


def skyrl_python() -> str | None:
    return os.environ.get("SLIPSTREAM_TEST_SKYRL")


class TinkerServer:
    """Its checkpoints and its database lie in ``folder``, so another start goes on from them."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder, self.port = model, folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "serve.py").write_text(SERVE_SOURCE)
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / "uv").write_text(UV_SOURCE)
        (folder / "bin" / "uv").chmod(0o755)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        python = str(skyrl_python())
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        env = kept | {"SKYRL_PYTHON": python, "PATH": path, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
        flags = {
            "base-model": self.model, "backend": "jax", "host": "127.0.0.1", "port": self.port,
            "database-url": f"sqlite:///{self.folder}/tinker.db", "checkpoints-base": self.folder / "checkpoints",
            "backend-config": '{"max_lora_adapters":32,"max_lora_rank":16}',
        }  # fmt: skip
        command = [python, str(self.folder / "serve.py"), "--"]
        command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True, cwd=self.folder
            )
        end = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end:
            try:
                if httpx.get(f"{self.url}/api/v1/healthz", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
            if self.process.poll() is not None:
                break
        tail = (self.folder / "server.log").read_text()[-3000:]
        raise RuntimeError(f"the server did not start:\n{tail}")

    def kill(self) -> None:
        """All of it, the engine too, without a word."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


if __name__ == "__main__":
    server = TinkerServer(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
    server.start()
    print(server.url, flush=True)
    try:
        signal.pause()
    finally:
        server.kill()
