"""Files that survive a power cut, and what takes the space of a folder."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from slipstream.errors import StartError
from slipstream.shared.tenant_names import TENANTS_FOLDER_NAME

log = logging.getLogger(__name__)
DATA_FOLDER_FORMAT = 7
"""Of a data folder: the number of its store's schema. An older program would serve a newer folder without its store."""


def sync(path: Path) -> None:
    """Fsync a file, or a folder: then renames in it are durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(file: Path) -> str:
    """In hex. Raises ``OSError``."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def keep_private(root: Path, adapters: Path) -> None:
    """What this process and its children write from now on is for their user alone, and so is what a data folder holds
    already: conversations, rewards and keys.

    Adapters are not: an engine may be another user's. So the way to them may be gone, but no folder on it is listed.
    """
    if not root.exists():
        root.mkdir(parents=True)
        root.chmod(0o755)
    os.umask(0o077)
    ways = (adapters, root / TENANTS_FOLDER_NAME / "_") if adapters.is_relative_to(root) else (adapters,)
    for path in (root, *root.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            _tighten(path, ways)


def open_way(adapters: Path) -> None:
    """Make the folder of adapters, and those on the way to it that are not there yet. A tenant's own may have been made
    by another process, for its user alone.
    """
    for path in reversed([path for path in (adapters, *adapters.parents) if not path.exists()]):
        path.mkdir(exist_ok=True)
        path.chmod(0o755 if path == adapters else 0o711)
    for path in adapters.parents:
        if TENANTS_FOLDER_NAME in (path.name, path.parent.name) and not path.stat().st_mode & 0o001:
            path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o011)


def _tighten(path: Path, ways: Sequence[Path]) -> None:
    if path in ways or path.is_symlink():
        return
    found = path.stat()
    folder = 0o711 if any(way.is_relative_to(path) for way in ways) else 0o700
    most = folder if stat.S_ISDIR(found.st_mode) else 0o600
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077 & ~most:
        try:
            path.chmod(mode & (most | 0o7700))
        except OSError as e:
            log.warning("%s may be read by others (mode %o): `chmod go-rwx %s` as its owner: %s", path, mode, path, e)


def open_to_engine(folder: Path) -> None:
    """An adapter's folder may be read by whatever user the engine is."""
    for path in (*folder.iterdir(), folder):
        path.chmod(0o755 if path.is_dir() else 0o644)


def private_file(path: Path, *, append: bool = False) -> BinaryIO:
    """A new file for this user alone. One that is there is emptied; with ``append`` it goes on."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC), 0o600)
    os.fchmod(fd, 0o600)
    return os.fdopen(fd, "ab" if append else "wb")


def bytes_of(path: Path) -> int:
    """Of a file, or of all files below a folder; links are not followed. What vanishes meanwhile counts nothing."""
    total = 0
    with contextlib.suppress(OSError):
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
        with os.scandir(path) as entries:
            total = sum(bytes_of(Path(entry.path)) for entry in entries)
    return total


def space_of(root: Path, adapters: Path) -> dict[str, int]:
    """Part of a data folder → its bytes, the largest first. ``adapters`` may lie elsewhere, and counts too."""
    found: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for path in root.iterdir():
            name = "store" if path.name.startswith("slipstream.duckdb") else path.name
            found["adapters" if path == adapters else name] += bytes_of(path)
    if adapters.parent != root:
        found["adapters"] += bytes_of(adapters)
    small = [name for name, n in found.items() if n < 2**20]
    other = sum(found.pop(name) for name in small)
    return dict(found.most_common()) | ({"other": other} if other else {})


def release_of(wrote: str, version: str) -> str:
    """What to install to read what release ``wrote`` has written. ``version``: this program's, perhaps the same."""
    return f"{wrote} or newer{' (a later build than this one)' if wrote == version else ''}"


def check_format(root: Path, version: str) -> None:
    """Note in the folder which program wrote it. Raises ``StartError`` for one that a newer program wrote."""
    path = root / "format"
    try:
        number, _, wrote = path.read_text(encoding="utf-8").strip().partition(" ")
        found = int(number)
    except FileNotFoundError:
        found, wrote = 0, ""
    except (OSError, ValueError) as e:
        raise StartError(f"{path} cannot be read: {e}; restore it from a backup") from e
    if found > DATA_FOLDER_FORMAT:
        raise StartError(
            f"data_dir {root} was written by slipstream {wrote} (format {found}), and {version} knows formats up to "
            f"{DATA_FOLDER_FORMAT}: install {release_of(wrote, version)}, or restore a backup from before the "
            "upgrade into an empty folder"
        )
    if (found, wrote) != (DATA_FOLDER_FORMAT, version):
        with contextlib.suppress(OSError):  # a full disk keeps no proxy from starting
            path.with_suffix(".tmp").write_text(f"{DATA_FOLDER_FORMAT} {version}\n", encoding="utf-8")
            path.with_suffix(".tmp").replace(path)
