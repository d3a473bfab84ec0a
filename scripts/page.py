"""Build the web page from ``page/`` into the package: ``python scripts/page.py`` (needs npm; ``--check``: exit 1 when
the build is older than its sources, needs no npm; ``--out``: build into another folder).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "page"
BUILT = ROOT / "proxy" / "slipstream_proxy" / "control" / "page"
FILES = ("index.html", "page.css", "page.js")
STAMP = "build.json"
FIRST_VIEW = 150_000
"""Most bytes, packed, that the browser loads before the page shows anything."""


def digest() -> str:
    """Of all that the build depends on: the sources, the locked packages, and the build's settings."""
    found = sha256()
    for path in sorted([*SOURCES.glob("*.*"), *SOURCES.glob("src/**/*.*")]):
        if path.is_file() and ".test." not in path.name:
            body = path.read_bytes()
            found.update(f"{path.relative_to(SOURCES).as_posix()}\0{len(body)}\0".encode() + body)
    return found.hexdigest()


def build(out: Path) -> None:
    """Write ``FILES`` and the stamp. Raises ``CalledProcessError`` where npm fails."""
    if not (SOURCES / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=SOURCES, check=True)
    env = {**os.environ, "PAGE_OUT": str(out)}
    subprocess.run(["npm", "run", "--silent", "build"], cwd=SOURCES, env=env, check=True)
    (out / STAMP).write_text(json.dumps({"sources": digest()}) + "\n")


def is_current(out: Path = BUILT) -> bool:
    stamp = out / STAMP
    return stamp.is_file() and json.loads(stamp.read_text())["sources"] == digest()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=BUILT)
    args = parser.parse_args(argv)
    if not args.check:
        build(args.out.resolve())
    elif not is_current(args.out):
        print("the built page is older than its sources: run `python scripts/page.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
