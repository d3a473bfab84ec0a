"""Whether a package that is installed can be imported, and why not: a build for another torch fails only then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages with code of torch's own kind: each build fits one torch. transformers and vLLM import those they find."""
TORCH_INDEX = "https://download.pytorch.org/whl/"
IMPORT_TIMEOUT_S = 300.0
_IMPORT = """
import importlib, sys
try:
    importlib.import_module(sys.argv[1])
except BaseException as error:
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    sys.exit(f"{type(error).__name__}: {text}" if text else type(error).__name__)
"""


def root_cause(error: BaseException) -> BaseException:
    """The error that the others were raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def import_errors(modules: Iterable[str], python: str | None = None) -> dict[str, str]:
    """Module → why it cannot be imported, in a process of its own each, side by side. Those that can are left out.

    Raises ``OSError`` for a Python that cannot be run.
    """
    program = str(Path(python).expanduser()) if python else sys.executable
    running = {
        module: subprocess.Popen(
            [program, "-P", "-c", _IMPORT, module], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for module in modules
    }
    found = {}
    for module, process in running.items():
        try:
            _, told = process.communicate(timeout=IMPORT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found[module] = f"its import did not end within {IMPORT_TIMEOUT_S:g} s"
            continue
        if process.returncode:
            lines = told.strip().splitlines()
            found[module] = lines[-1] if lines else f"its import ended Python with code {process.returncode}"
    return found


def torch_fix(broken: Iterable[str], torch: str | None, pip: str = "pip") -> str:
    """How packages that do not load beside this torch are mended."""
    names = " ".join(broken)
    _, _, build = (torch or "").partition("+")
    index = f" --index-url {TORCH_INDEX}{build}" if build else ""
    pinned = f"'torch=={torch}' {names}" if torch else names
    return (
        f"`{pip} uninstall -y {names}` (models that see or hear alone need them), or the builds for this torch: "
        f"`{pip} install --force-reinstall {pinned}{index}`"
    )
