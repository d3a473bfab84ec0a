"""A DuckDB file: opened, or set aside when it is broken; and written again."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from pathlib import Path

import duckdb

from slipstream.files import sync
from slipstream_proxy.store.driver import StoreError

log = logging.getLogger("slipstream.store")

BLOCKED = (
    "could not set lock",
    "permission denied",
    "no such file",
    "cannot open file",
    "no space left",
    "read-only file system",
)
"""Why a good file cannot be opened just now: it is left where it is."""


class LentLock:
    """DuckDB's lock on an open file, which lets no other process read. It is given up for a reader, whose own lock
    keeps writers out meanwhile.

    POSIX locks belong to a process and a file, whichever descriptor they were taken with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        """Holds the lock since a reader had it. Closing it would give the lock up."""

    def lend(self) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDWR)
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def take_back(self) -> None:
        if self._fd is not None:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                log.error("%s is open in another process, too", self.path)

    def close(self) -> None:
        """The file was closed."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def open_file(path: Path, config: dict[str, str]) -> duckdb.DuckDBPyConnection:
    """Open the file, or make it. Raises DuckDB's own errors."""
    con = duckdb.connect(str(path), config={**config})
    try:
        # A query offered to users may run `read_text`: nothing outside the file can be reached, and nobody can
        # change that.
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        for (table,) in con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE table_name IN ('t_meta', 't_positions')"
        ).fetchall():
            con.execute(f"SELECT * FROM {table}").fetchall()
    except BaseException:
        con.close()
        raise
    return con


def open_or_set_aside(path: Path, config: dict[str, str]) -> tuple[duckdb.DuckDBPyConnection, bool]:
    """The open file, and whether it was broken and anything of it was set aside.

    A broken log is set aside alone, because the file holds everything up to the last snapshot and the spool holds what
    came since. A broken file is set aside too.
    """
    con, reason = _try_open(path, config)
    if con is not None:
        return con, False
    aside = path.with_name(f"{path.name}.broken-{int(time.time() * 1000)}")
    wal, wal_aside = Path(f"{path}.wal"), Path(f"{aside}.wal")
    if wal.exists():
        wal.rename(wal_aside)
        try:
            con, _ = _try_open(path, config)
        except StoreError:
            wal_aside.rename(wal)
            raise
        if con is not None:
            log.critical(
                "the log of %s is broken (%s): set aside as %s; the spool is replayed from the last snapshot on",
                path,
                reason,
                wal_aside.name,
            )
            return con, True
    if path.exists():
        path.rename(aside)
    log.critical(
        "the store %s is broken (%s): set aside as %s; a new one is made and the spool is replayed",
        path,
        reason,
        aside.name,
    )
    return open_file(path, config), True


def _try_open(path: Path, config: dict[str, str]) -> tuple[duckdb.DuckDBPyConnection | None, str]:
    """Or why it is broken. Raises ``StoreError`` when it may be good and cannot be opened just now."""
    try:
        return open_file(path, config), ""
    except (duckdb.Error, RuntimeError, UnicodeDecodeError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        if any(b in reason.lower() for b in BLOCKED):
            raise StoreError(f"{path} cannot be opened: {reason}") from e
        return None, reason


def copy_file(path: Path, copy: Path) -> Path:
    """Copy a file and its log, while nobody writes. → The copy."""
    shutil.copyfile(path, copy)
    wal = Path(f"{path}.wal")
    if wal.exists():
        shutil.copyfile(wal, f"{copy}.wal")
    return copy


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
    sync(new)
    new.replace(path)


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except OSError:
        return ""
