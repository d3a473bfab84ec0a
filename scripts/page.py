"""Build the web page from ``page/`` into the package: ``python scripts/page.py`` (needs npm; ``--check``: exit 1 when
the build is older than its sources, needs no npm; ``--out``: build into another folder).

The types of what the control API answers are written first, from its own models (``page/src/api-types.ts``).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "page"
BUILT = ROOT / "proxy" / "slipstream_proxy" / "control" / "page"
FILES = ("index.html", "page.css", "page.js")
STAMP = "build.json"
TYPES = SOURCES / "src" / "api-types.ts"
GENERATOR = ("openapi-typescript@7.13.0", "typescript@5.9.3")
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


def schema() -> str:
    """What all routes answer, as JSON; without descriptions, which the types don't need."""
    from slipstream_imports.server.part import ImportsPlugin
    from slipstream_labelling.server.part import LabellingPlugin
    from slipstream_proxy.control.api.app import ALL_ROUTES
    from slipstream_proxy.control.api.openapi import answers
    from slipstream_replay.server.part import ReplayPlugin

    def bare(value: object) -> object:
        if isinstance(value, dict):
            return {k: bare(v) for k, v in value.items() if k != "description" or not isinstance(v, str)}
        return [bare(v) for v in value] if isinstance(value, list) else value

    found = answers([*ALL_ROUTES, *ImportsPlugin.routes, *LabellingPlugin.routes, *ReplayPlugin.routes])
    return json.dumps(bare(found | {"info": {"title": "answers", "version": "1"}}), sort_keys=True)


def mark(text: str) -> str:
    """The first line of the types that a schema gives."""
    return f"// Written by `make page` from the control API's models: {sha256(text.encode()).hexdigest()[:16]}\n"


def write_types() -> None:
    """Raises ``CalledProcessError`` where npm fails."""
    text = schema()
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "schema.json", Path(folder) / "types.ts"
        given.write_text(text)
        packages = [word for package in GENERATOR for word in ("-p", package)]
        command = ["npx", "--yes", *packages, "openapi-typescript", str(given), "-o", str(made)]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        types = re.sub(r"\bunknown\b", "Json", made.read_text())
    TYPES.write_text(mark(text) + 'import type { Json } from "./types";\n' + types)


def build(out: Path) -> None:
    """Write ``FILES`` and the stamp. Raises ``CalledProcessError`` where npm fails."""
    if not (SOURCES / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=SOURCES, check=True)
    if not has_types():
        write_types()
    env = {**os.environ, "PAGE_OUT": str(out)}
    subprocess.run(["npm", "run", "--silent", "build"], cwd=SOURCES, env=env, check=True)
    (out / STAMP).write_text(json.dumps({"sources": digest()}) + "\n")


def has_types() -> bool:
    """Whether the types are those of the models."""
    return TYPES.is_file() and TYPES.read_text().startswith(mark(schema()))


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
    elif not has_types():
        print("the page's types are not those of the API's models: run `python scripts/page.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
