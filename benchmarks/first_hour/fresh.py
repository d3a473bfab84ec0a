"""A fresh environment that has the project's wheel, and `slipstream up` in an empty folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 240.0


def run(*command: str | Path) -> None:
    """Run a command quietly. Raises ``SystemExit`` with its output when it fails."""
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT)
    if ran.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ran.stdout}{ran.stderr}")


def fresh_environment(folder: Path) -> Path:
    """Build the wheel, and install it alone into a new virtual environment. Returns the environment's ``slipstream``.

    The third-party packages come from the environment that runs this, through a .pth file: downloading them again would measure
    the network. Slipstream itself comes from the wheel and from nowhere else.
    """
    wheels, env = folder / "wheels", folder / "env"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT)
    run(sys.executable, "-m", "venv", "--without-pip", env)
    (wheel,) = wheels.glob("slipstream-*.whl")
    run(*pip, "--python", env / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(env), "platbase": str(env)}))
    (site / "third-party.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    found = subprocess.run(
        [env / "bin" / "python", "-c", "import slipstream, torch; print(slipstream.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        env=plain_environment(),
    ).stdout.strip()
    if not Path(found).is_relative_to(env):
        raise SystemExit(f"slipstream was imported from {found}, not from the wheel")
    return env / "bin" / "slipstream"


def plain_environment() -> dict[str, str]:
    """This process's environment without what would lead Python or Slipstream elsewhere."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLIPSTREAM_", "OMP_"))}


class Up:
    """`slipstream up` with its output in a file: ``with Up(...) as url``."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.command, self.folder = command, folder
        self.log = folder / "up.log"
        self.ready_seconds = 0.0

    def __enter__(self) -> str:
        began = time.monotonic()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, stdout=log, stderr=log, env=plain_environment(), start_new_session=True
            )
        while time.monotonic() - began < START_SECONDS:
            for line in self.log.read_text().splitlines():
                if "ready: OPENAI_BASE_URL=" in line:
                    url = line.split("OPENAI_BASE_URL=", 1)[1].split()[0].removesuffix("/v1")
                    httpx.get(f"{url}/readyz").raise_for_status()
                    self.ready_seconds = time.monotonic() - began
                    return url
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        self.__exit__()
        raise SystemExit(f"`slipstream up` was not ready: {self.log}\n{self.log.read_text()[-3000:]}")

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
