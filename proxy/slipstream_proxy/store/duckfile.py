"""A DuckDB file, written again: without freed blocks, or after somebody deleted it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import duckdb

from slipstream_proxy.store.driver import StoreError


def write_anew(path: Path, config: dict[str, str]) -> None:
    """Copy what is there to a new file that takes the old one's place: freed blocks keep their bytes.

    Raises ``StoreError`` for a log that stays.
    """
    new = Path(f"{path}.rewrite")
    # The last connection that closes writes the log into the file; a log that stays would be the old file's.
    if Path(f"{path}.wal").exists():
        duckdb.connect(str(path), config=config).close()
    new.unlink(missing_ok=True)
    with duckdb.connect(":memory:", config=config) as con:
        for file, name, mode in ((path, "old", " (READ_ONLY)"), (new, "new", "")):
            quoted = str(file).replace("'", "''")
            con.execute(f"ATTACH '{quoted}' AS {name}{mode}")
        con.execute("COPY FROM DATABASE old TO new")
        con.execute("CHECKPOINT new")
    if Path(f"{path}.wal").exists():
        raise StoreError(f"{path}.wal is still there: the file was not written anew")
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def restore_deleted(path: Path) -> None:
    """Copy the deleted file that this process still has open back to its path.

    Raises ``StoreError`` if none is open.
    """
    name = f"{path.resolve()} (deleted)"
    found = next((fd for fd in Path("/proc/self/fd").iterdir() if _target(fd) == name), None)
    if found is None:
        raise StoreError(f"{path} is deleted, and no longer open")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = Path(f"{path}.restored")
    shutil.copyfile(found, new)
    file = os.open(new, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    new.replace(path)


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""
