"""A DuckDB file that nobody has open, written anew."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb

from slipstream_proxy.store.driver import StoreError


def write_anew(path: Path, config: dict[str, str]) -> None:
    """Copy what is there to a new file that takes the old one's place: freed blocks keep their bytes. Raises ``StoreError`` for a log that stays."""
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
