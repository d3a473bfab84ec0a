"""`scripts/newer.py` tells of releases beyond what the project is tried with, and of nothing else."""

from __future__ import annotations

import pytest
from packaging.version import Version
from tests.support import ROOT
from tests.support.rendering import load_script


@pytest.mark.parametrize("bump", ["none", "patch", "minor"])
def test_newer_releases_are_told(monkeypatch: pytest.MonkeyPatch, bump: str) -> None:
    newer = load_script(ROOT / "scripts" / "newer.py")
    locked = newer.tried() | {"vllm": Version("0.32.0")}
    assert set(newer.WATCHED) <= locked.keys()

    def newest(name: str) -> Version:
        major, minor, patch = (*locked[name].release, 0, 0)[:3]
        return Version(f"{major}.{minor + (bump == 'minor')}.{patch + (bump == 'patch')}")

    monkeypatch.setattr(newer, "newest", newest)
    found = list(newer.newer())
    assert len(found) == (len(newer.WATCHED) if bump == "minor" else 0)
    assert newer.main() == (1 if bump == "minor" else 0)
