"""Tell of releases that are newer than those that this project is tried with.

    python scripts/newer.py        print each, and exit 1 if there is one

A package with an upper bound in ``pyproject.toml`` is newer where its newest release lies beyond it. Any other one is
newer where its minor version is above the one in ``requirements/lock.txt``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
WATCHED = ("vllm", "litellm", "transformers", "torch", "trl", "peft", "unsloth")


def newest(name: str) -> Version:
    """As the package index says."""
    argv = [sys.executable, "-m", "pip", "index", "versions", name]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300).stdout
    found = re.match(rf"{re.escape(name)} \((.+)\)", said)
    if found is None:
        raise SystemExit(f"pip says nothing of {name}: {said[:200]}")
    return Version(found[1])


def tried() -> dict[str, Version]:
    """Package → its version in the locks."""
    lines = [
        line
        for part in ("lock", "unsloth", "trainer")
        for line in (ROOT / "requirements" / f"{part}.txt").read_text().splitlines()
    ]
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {name.lower(): Version(version) for name, version in reversed(pairs)}


def bounds() -> dict[str, Requirement]:
    """Package → what the extras but Unsloth's ask for, which cannot have newer ones than Unsloth takes."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [Requirement(r) for extra, wanted in extras.items() if extra != "unsloth" for r in wanted]
    return {r.name.lower(): r for r in asked if any(s.operator in ("<", "<=") for s in r.specifier)}


def newer() -> Iterator[str]:
    """A sentence for each."""
    locked, bounded = tried(), bounds()
    for name in WATCHED:
        found = newest(name)
        if name in bounded:
            if not bounded[name].specifier.contains(found):
                yield f"{name} {found} is out, and pyproject.toml has {bounded[name]}"
        elif name in locked and found.release[:2] > locked[name].release[:2]:
            yield f"{name} {found} is out, and the lock has {locked[name]}"


def main() -> int:
    """Returns the exit code."""
    found = list(newer())
    print("\n".join(found) or "nothing is newer than what it is tried with")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
