"""``make docs`` builds the site, and fails on any warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import ROOT

PARTS = (
    "docs",
    "benchmarks/RESULTS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "scripts",
    "mkdocs.yml",
    "sdk",
    "examples/tutorial",
)


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    """What the Makefile runs, in ``tree``."""
    told = subprocess.run(["make", "-n", "docs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (command,) = [line for line in told.splitlines() if "mkdocs" in line]
    command = command.replace(".venv/bin/python", sys.executable)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / area) for area in ("sdk", "proxy"))}
    return subprocess.run(command, shell=True, cwd=tree, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for part in PARTS:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
        else:
            shutil.copy(ROOT / part, tmp_path / part)
    (tmp_path / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
    for picture in (ROOT / "docs").rglob("*.png"):  # links to them are checked, not their bytes
        (tmp_path / picture.relative_to(ROOT)).touch()
    return tmp_path


BROKEN = (
    ("docs/faq.md", "[a page](no-such-page.md)", "no-such-page.md"),
    ("docs/faq.md", "[a section](gate.md#no-such-section)", "no-such-section"),
    ("docs/faq.md", "[a file](../benchmarks/RESULTS.md)", "../benchmarks/RESULTS.md"),
    ("docs/faq.md", "A source [3] [4].", "cross-reference target '4'"),
    ("benchmarks/RESULTS.md", "[a file](results/none.json)", "results/none.json"),
    ("docs/unlisted.md", "# In no menu", "unlisted.md"),
)


def test_any_warning_fails_it_and_is_told(tree: Path) -> None:
    """And these are all: what the repository has gives none."""
    for page, line, _ in BROKEN:
        path = tree / page
        path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    done = build(tree)
    assert done.returncode != 0
    assert [told for _, _, told in BROKEN if told not in done.stderr] == []
    assert done.stderr.count("WARNING - ") == len(BROKEN), done.stderr
    measured = (tree / "site" / "measured.html").read_text()
    assert 'src="images/curves/peers.png"' in measured, "a link of a file outside docs/ is rewritten"
    named = re.findall(r"\]\((\S+?)\)", (tree / "site" / "llms.txt").read_text())
    assert len(named) > 20
    assert [page for page in named if not (tree / "site" / page).is_file()] == []
