"""A clean virtual environment of an image, without a network: just the distributions that its requirements name, linked from this environment."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from tests.support import ROOT

SOURCES = ("sdk/slipstream", "proxy/slipstream_proxy", "judge/slipstream_judge", "trainer/slipstream_trainer")


def required(part: str) -> list[str]:
    """Names in requirements/<part>.txt, and what torch needs of its own, which the image's build leaves to pip."""
    lines = (ROOT / "requirements" / f"{part}.txt").read_text().splitlines()
    found = [re.split("==", line)[0] for line in lines if line and not line.startswith("#")]
    todo = ["torch"] if "torch" in found else []
    while todo:
        for wanted in map(Requirement, importlib.metadata.requires(todo.pop()) or []):
            if (wanted.marker is None or wanted.marker.evaluate({"extra": ""})) and wanted.name not in found:
                try:
                    importlib.metadata.distribution(wanted.name)
                except importlib.metadata.PackageNotFoundError:
                    continue  # of the CUDA build
                found.append(wanted.name)
                todo.append(wanted.name)
    return found


def make(folder: Path, part: str) -> Path:
    """→ Its ``bin``, with ``slipstream`` in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name in required(part):
        distribution = importlib.metadata.distribution(name)
        for top in {f.parts[0] for f in distribution.files or ()} - {"..", "__pycache__"}:
            target = site / top
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))
    for source in SOURCES:
        (site / Path(source).name).symlink_to(ROOT / source)
    own = next(Path(p) for p in sys.path if list(Path(p).glob("slipstream-*.dist-info")))
    for path in own.glob("slipstream-*.dist-info"):
        (site / path.name).symlink_to(path)
    script = folder / "bin" / "slipstream"
    script.write_text(f"#!{folder}/bin/python\nfrom slipstream.cli import main\nraise SystemExit(main())\n")
    script.chmod(0o755)
    return folder / "bin"
