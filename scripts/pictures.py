"""Make README's picture and figures of one run: play the demo, and keep its curve.

python scripts/pictures.py            docs/images/demo.png, and README's figures (minutes, all cores)
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
README = ROOT / "README.md"
FIGURES = re.compile(r"(<!-- scripts/pictures.py writes this -->\n).*?(\n<!-- until here -->)", re.DOTALL)
"""README's place for what the run came to, the only one."""


def sentence(summary: dict[str, Any]) -> str:
    """What the run came to: of ``slipstream demo``'s last line."""
    version = str(summary["adapter"]).rpartition("@")[2]
    before, after = (f"{summary[name]:.2f}" for name in ("success_base", "success_last"))
    return (
        f"This is the agent of `make demo`, {summary['train_seconds']:.0f} s of training on two CPU cores. On tasks that "
        f"it never trained on, its mean reward\nis **{before} before** (the base model, left) and **{after} after** "
        f"(version {version}, right):"
    )


def with_figures(text: str, summary: dict[str, Any]) -> str:
    """README's text, with the figures of this run. Raises ``ValueError`` where it has no place for them, or two."""
    new, places = FIGURES.subn(lambda found: found[1] + sentence(summary) + found[2], text)
    if places != 1:
        raise ValueError(f"README.md has {places} places for the demo's figures")
    return new


def play(seed: int) -> None:
    """Raises ``AssertionError`` where the demo does not come to its end."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-pictures-"))
    argv = [sys.executable, "-m", "slipstream.cli", "demo", "--seed", str(seed), "--data-dir", str(folder)]
    demo = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        summary = next((line for line in demo.stdout if line.startswith("{")), "{}")
        told = json.loads(summary)
        assert told, "the demo ended without a summary"
        shutil.copy(folder / f"seed-{seed}" / "success.png", IMAGES / "demo.png")
        README.write_text(with_figures(README.read_text(), told))
    finally:
        demo.terminate()
        demo.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make README's picture and figures.")
    parser.add_argument("--seed", type=int, default=0)
    IMAGES.mkdir(parents=True, exist_ok=True)
    play(parser.parse_args().seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
