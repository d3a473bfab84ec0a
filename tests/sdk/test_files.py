from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.files import sync


def test_files_and_folders_are_synced_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    before = len(os.listdir("/proc/self/fd"))
    sync(file)
    sync(tmp_path)
    assert synced == [file.stat().st_ino, tmp_path.stat().st_ino]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_failure_is_raised_and_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "fsync", fail)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="disk"):
        sync(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
