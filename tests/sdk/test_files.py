from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slipstream.shared.files import keep_private, open_to_engine, open_way, private_file, space_of, sync


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


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_what_a_data_folder_holds_is_for_its_user_alone(tmp_path: Path, inside: bool, there: bool) -> None:
    root = tmp_path / "data"
    adapters = root / "adapters" if inside else tmp_path / "adapters"
    if there:  # as an older program left it
        (root / "spool").mkdir(parents=True)
        (root / "slipstream.duckdb").write_text("words")
        (root / "link").symlink_to("/")
        (adapters / "m@1").mkdir(parents=True)
        (adapters / "m@1" / "adapter_config.json").write_text("{}")
    keep_private(root, adapters)
    (root / "slipstream.duckdb.wal").write_text("words")
    (root / "rewrite").mkdir()
    assert mode(root) == (0o711 if inside else 0o700), "an engine of another user finds the way, and lists nothing"
    for path in root.rglob("*"):
        if not path.is_relative_to(adapters) and not path.is_symlink():
            assert mode(path) & 0o077 == 0, path
    if there:
        assert (mode(adapters), mode(adapters / "m@1" / "adapter_config.json")) == (0o755, 0o644)


@pytest.mark.usefixtures("umask")
def test_an_engine_finds_tenants_adapters_and_lists_no_tenant(tmp_path: Path) -> None:
    root = tmp_path / "not yet" / "data"
    acme = root / "tenants" / "acme"
    for _ in range(2):  # also at the next start
        keep_private(root, root / "adapters")
        open_way(acme / "adapters")  # whichever process comes first
        (acme / "spool").mkdir(parents=True, exist_ok=True)
        keep_private(acme, acme / "adapters")
        assert mode(root.parent) == 0o755
        assert {mode(path) for path in (root, root / "tenants", acme)} == {0o711}
        assert (mode(acme / "adapters"), mode(acme / "spool")) == (0o755, 0o700)


@pytest.mark.usefixtures("umask")
def test_an_adapter_is_for_the_engine_and_a_download_for_its_user(tmp_path: Path) -> None:
    os.umask(0o077)
    folder = tmp_path / "m@1"
    folder.mkdir()
    (folder / "x").write_text("{}")
    open_to_engine(folder)
    assert (mode(folder), mode(folder / "x")) == (0o755, 0o644)
    os.umask(0o022)
    (tmp_path / "old").write_text("words")
    for name in ("new", "old"):
        with private_file(tmp_path / name) as out:
            out.write(b"x")
        assert mode(tmp_path / name) == 0o600 and (tmp_path / name).read_text() == "x"
        (tmp_path / name).chmod(0o644)
        with private_file(tmp_path / name, append=True) as out:
            out.write(b"y")
        assert mode(tmp_path / name) == 0o600 and (tmp_path / name).read_text() == "xy"
