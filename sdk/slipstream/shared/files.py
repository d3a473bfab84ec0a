"""Files that survive a power cut, and what takes the space of a folder."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

from slipstream.errors import StartError

FORMAT = 1
"""Of a data folder. It rises when an older program would misread what a newer one writes there."""


def sync(path: Path) -> None:
    """Fsync a file, or a folder: then renames in it are durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
    if found > FORMAT:
        raise StartError(
            f"data_dir {root} was written by slipstream {wrote} (format {found}), and {version} knows formats up to "
            f"{FORMAT}: install {wrote} or newer, or restore a backup from before the upgrade into an empty folder"
        )
    if (found, wrote) != (FORMAT, version):
        with contextlib.suppress(OSError):  # a full disk keeps no proxy from starting
            path.with_suffix(".tmp").write_text(f"{FORMAT} {version}\n", encoding="utf-8")
            path.with_suffix(".tmp").replace(path)
