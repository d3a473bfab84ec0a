"""What is fetched from elsewhere is named so that it cannot change: actions by commit, images by digest; and releases that
stole credentials are excluded by name.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_actions_are_named_by_their_commit(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), f"{action} may change under its tag"
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", comment), f"{action} does not say its version"


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_every_list_of_requirements_is_audited(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / name).read_text()
    assert re.search(r"for file in requirements/\*\.txt; do .*pip_audit --requirement \"\$file\"", text)
    extras = {"proxy", "judge", "trainer", "engine-cpu", "unsloth", "lock"}
    assert extras <= {p.stem for p in (ROOT / "requirements").glob("*.txt")}


def test_stolen_releases_are_excluded_and_what_is_locked_is_not() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    litellm = next(Requirement(r) for r in extras["judge"] if r.startswith("litellm"))
    for bad in ("1.82.7", "1.82.8", "1.107.0", "1.107.3"):
        assert bad not in litellm.specifier
    assert any(s.operator in ("<", "<=") for s in litellm.specifier), "a release that nobody has looked at comes in"
    for file in ("lock.txt", "judge.txt"):
        locked = re.search(r"^litellm==(\S+)", (ROOT / "requirements" / file).read_text(), re.M)
        assert locked and locked[1] in litellm.specifier


def test_images_are_named_by_their_digest() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    for image in re.findall(r"^ARG \w+_IMAGE=(\S+)", text, re.M) + re.findall(r"^# syntax=(\S+)", text):
        assert re.search(r"@sha256:[0-9a-f]{64}$", image), f"{image} may change under its tag"
