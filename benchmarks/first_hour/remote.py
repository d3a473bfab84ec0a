"""The first minutes of someone who has the client alone, as on macOS or Windows, and a proxy on another machine.

    python benchmarks/first_hour/remote.py

A proxy with keys listens on this machine's own address, not on loopback, behind a stand-in engine. What is timed happens in a new virtual
environment: ``pip install`` of the wheel and what it needs from the package index, the first `slipstream status`, the first tagged call and its
reward with the Python client, and `slipstream episodes`, which has to show both. Nothing that only the other parts need is importable there.
The last line is one JSON object, with seconds since the beginning at each stage.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fresh import plain_environment, run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "proxy"))
from soak import Engines  # noqa: E402

AGENT = """
import sys, importlib.util, httpx, slipstream
assert all(importlib.util.find_spec(p) is None for p in ("duckdb", "torch", "vllm", "aiohttp"))
with slipstream.episode(task="the first task", url=sys.argv[1], key=sys.argv[2]) as ep:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    headers = {**ep.headers, "authorization": f"Bearer {sys.argv[2]}"}
    said = httpx.post(f"{sys.argv[1]}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert said.status_code == 200 and b"data:" in said.content, said.text
    ep.reward(1.0)
"""


def own_address() -> str:
    """This machine's address in its network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("192.0.2.1", 9))
        return str(s.getsockname()[0])


def said(*command: str | Path, folder: Path) -> str:
    """What a command prints. Raises ``SystemExit`` when it fails."""
    words = list(map(str, command))
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=plain_environment())
    if ran.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


class Remote:
    """The proxy with its key: ``with Remote(folder) as (url, key)``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slipstream = [sys.executable, "-m", "slipstream.cli"]

    def __enter__(self) -> tuple[str, str]:
        self.engines = Engines(1, 8, 0.01)
        config = self.folder / "slipstream.toml"
        config.write_text(
            f'data_dir = "{self.folder}/data"\n[engine]\nname = "m"\nurls = ["http://127.0.0.1:{self.engines.ports[0]}"]\n'
            f'[proxy]\nhost = "{own_address()}"\nport = 0\n'
        )
        scopes = "inference,reward,viewer"
        made = said(*self.slipstream, "keys", "add", "me", "--scopes", scopes, "--config", config, folder=self.folder)
        log = (self.folder / "proxy.log").open("wb")
        self.proxy = subprocess.Popen(
            [*self.slipstream, "proxy", "--config", str(config)], stdout=log, stderr=log, start_new_session=True
        )
        found = self.folder / "data" / "proxy.json"
        until = time.monotonic() + 120
        while not found.exists() and time.monotonic() < until:
            time.sleep(0.1)
        key = next(word for word in made.split() if word.startswith("sk-"))
        return json.loads(found.read_text())["url"], key

    def __exit__(self, *_: object) -> None:
        self.proxy.send_signal(signal.SIGTERM)
        self.proxy.wait(60)
        self.engines.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            folder / "wheels",
            ROOT,
        )
        (wheel,) = (folder / "wheels").glob("slipstream-*.whl")
        with Remote(folder) as (url, key):
            print(json.dumps(stages(folder, wheel, url, key)))


def stages(folder: Path, wheel: Path, url: str, key: str) -> dict[str, object]:
    began, found = time.monotonic(), {}

    def reached(stage: str) -> None:
        found[stage] = round(time.monotonic() - began, 1)

    home = folder / "home"
    said(sys.executable, "-m", "venv", home, folder=folder)
    reached("environment_s")
    said(home / "bin" / "pip", "install", "-q", "--disable-pip-version-check", wheel, folder=folder)
    reached("installed_s")
    command, whom = home / "bin" / "slipstream", ("--url", url.removeprefix("http://"), "--key", key)
    said(command, "status", *whom, folder=folder)
    reached("status_s")
    said(home / "bin" / "python", "-c", AGENT, url, key, folder=folder)
    reached("rewarded_s")
    until = time.monotonic() + 30
    rows: list[dict[str, object]] = []
    while not rows and time.monotonic() < until:
        rows = json.loads(said(command, "episodes", "--json", *whom, folder=folder))["episodes"]
    reached("seen_s")
    packages = len(list((home / "lib").glob("python*/site-packages/*.dist-info")))
    return {**found, "packages": packages, "seen": rows[0], "cores": os.cpu_count(), "load": os.getloadavg()[0]}


if __name__ == "__main__":
    main()
