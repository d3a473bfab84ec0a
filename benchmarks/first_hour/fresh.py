"""A fresh environment that has the project's wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.harness import ROOT


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
