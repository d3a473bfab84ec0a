from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.shared.files import space_of, sync


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


def test_what_takes_the_space_of_a_folder(tmp_path: Path) -> None:
    root, adapters = tmp_path / "data", tmp_path / "elsewhere"
    for path, size in (
        (root / "spool" / "a" / "1", 3 << 20), (root / "slipstream.duckdb", 2 << 20), (root / "slipstream.duckdb.wal", 2 << 20),
        (root / "lock", 5), (root / "keys.json", 7), (adapters / "m@1" / "weights", 1 << 21),
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    (root / "spool" / "loop").symlink_to(root)
    found = space_of(root, adapters)
    link = (root / "spool" / "loop").lstat().st_size
    assert found == {"store": 4 << 20, "spool": (3 << 20) + link, "adapters": 1 << 21, "other": 12}
    assert list(found) == ["store", "spool", "adapters", "other"]
    assert space_of(tmp_path / "none", adapters) == {"adapters": 1 << 21}
