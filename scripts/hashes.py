"""Write the hash of each locked package's wheel into ``requirements/lock-hashes.txt``, from which the images install.

    python scripts/hashes.py            ask the index for those whose version is new
    python scripts/hashes.py --all      ask for all
    python scripts/hashes.py --check    exit 1 where the file is not of this lock; asks nobody

pip picks the files: for CPython 3.11 on Linux x86-64, as in the images. torch is left out, because its build depends on the machine.
A file that lies on this machine is refused: the index's may differ.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
HASHES = ROOT / "requirements" / "lock-hashes.txt"
HEAD = "# Written by scripts/hashes.py from requirements/lock.txt. Do not edit.\n"
UNHASHED = {"torch"}
IMAGES_PYTHON = ("linux", "x86_64", (3, 11))
LINE = re.compile(r"(?P<pin>[\w.-]+==[\w.+!-]+) --hash=sha256:(?P<hash>[0-9a-f]{64})")


def pins() -> list[str]:
    """``name==version`` of each package that has a hash."""
    lines = (line.strip() for line in LOCK.read_text().splitlines())
    found = [line for line in lines if line and not line.startswith("#")]
    return [pin for pin in found if canonicalize_name(pin.split("==")[0]) not in UNHASHED]


def hashes() -> dict[str, str]:
    """Pin → hash, as the file has them."""
    if not HASHES.is_file():
        return {}
    return {m["pin"]: m["hash"] for m in map(LINE.fullmatch, HASHES.read_text().splitlines()) if m}


def canonical(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{canonicalize_name(name)}=={version}"


def read(report: dict[str, Any], wanted: list[str]) -> dict[str, str]:
    """Pin → hash, out of pip's report of what it would install. Raises ``SystemExit`` for a file of this machine, or none."""
    found: dict[str, str] = {}
    for one in report["install"]:
        url, about = one["download_info"]["url"], one["download_info"]["archive_info"]
        if not url.startswith("https://"):
            sys.exit(f"{url} lies on this machine: ask an index alone (PIP_FIND_LINKS= PIP_CONFIG_FILE=/dev/null)")
        name = f"{canonicalize_name(one['metadata']['name'])}=={one['metadata']['version']}"
        found[name] = about["hashes"]["sha256"]
    if missing := [pin for pin in wanted if canonical(pin) not in found]:
        sys.exit(f"pip found no file of {', '.join(missing)}")
    return {pin: found[canonical(pin)] for pin in wanted}


def ask(wanted: list[str]) -> dict[str, str]:
    """Pin → hash of the file that pip would install. Nothing is installed."""
    if (sys.platform, platform.machine(), sys.version_info[:2]) != IMAGES_PYTHON:
        sys.exit("the hashes are those of Linux x86-64 with CPython 3.11: run it there")
    with tempfile.TemporaryDirectory() as folder:
        report, list_ = Path(folder) / "report.json", Path(folder) / "wanted.txt"
        list_.write_text("\n".join(wanted) + "\n")
        argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
        if subprocess.run([*argv, "--report", str(report), "-r", str(list_)], check=False).returncode:
            sys.exit("pip could not ask the index")
        return read(json.loads(report.read_text()), wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    wanted, known = pins(), hashes()
    if args.check:
        stale = sorted(set(wanted) ^ known.keys())
        print("\n".join(f"stale: {pin}" for pin in stale))
        return bool(stale)
    new = [pin for pin in wanted if args.all or pin not in known]
    known |= ask(new) if new else {}
    HASHES.write_text(HEAD + "".join(f"{pin} --hash=sha256:{known[pin]}\n" for pin in wanted))
    print(f"{len(new)} of {len(wanted)} asked for")
    return 0


if __name__ == "__main__":
    sys.exit(main())
