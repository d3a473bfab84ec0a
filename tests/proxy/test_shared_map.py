"""Memory that workers share."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from slipstream_proxy.data.shared_map import SharedMap


def add(path: Path, times: int) -> None:
    table = SharedMap(path, 8)
    for _ in range(times):
        with table.locked():
            table.bytes[:8] = (int.from_bytes(table.bytes[:8], "little") + 1).to_bytes(8, "little")
    table.close()


def test_nothing_is_lost_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table"
    workers = [multiprocessing.get_context("spawn").Process(target=add, args=(path, 500)) for _ in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    table = SharedMap(path, 8)
    assert table.shared
    assert int.from_bytes(table.bytes[:8], "little") == 1000
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_path_it_is_ones_own() -> None:
    one, other = SharedMap(None, 8), SharedMap(None, 8)
    with one.locked():
        one.bytes[:1] = b"x"
    assert not one.shared
    assert other.bytes[:1] == b"\0"
    one.close()


def test_another_size_begins_anew(tmp_path: Path) -> None:
    first = SharedMap(tmp_path / "table", 8)
    first.bytes[:1] = b"x"
    first.close()
    second = SharedMap(tmp_path / "table", 16)
    assert second.bytes[:] == bytes(16)


def test_a_full_disk_is_an_error_and_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no space"):
        SharedMap(tmp_path / "table", 8)
    assert len(os.listdir("/proc/self/fd")) == before
