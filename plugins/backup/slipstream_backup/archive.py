"""A backup of everything while everything runs: the store, the spool, adapters, keys and checkpoints in one tar file.

First a copy of the store is made, and the spool's segments are linked beside it; meanwhile no segment goes. So each
record that was acknowledged before stands in the store's copy or in a segment behind the positions that it holds. Then
all of it is sent, and nothing waits for that. Tenants' control planes do the same with their folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from slipstream.shared.tenant_names import TENANTS_FOLDER_NAME
from slipstream_backup.tenants import add_tenants
from slipstream_proxy.control.storage.ingester import Ingester
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.store.store import Store

STAGE_PREFIX = ".backup-"
_OF_A_RUN = ("lock", "proxy.json", "live.json", "metrics", "limits", "hangs", "conversations", "spool", "hf")
"""What a proxy makes again, and what stands in the stage already."""


@contextlib.contextmanager
def staged(root: Path, store: Store, ingester: Ingester | None, *, without: Collection[str] = ()) -> Iterator[Path]:
    """A folder with a copy of the store and the segments that it needs; it goes afterwards. Blocks. ``without``: the
    schemas of PostgreSQL that have a copy of their own.

    Raises ``StoreError`` or ``OSError`` where there is no room, or no program, for the copy.
    """
    for left in root.glob(f"{STAGE_PREFIX}*"):  # of a proxy that was killed
        if not left.name.startswith(f"{STAGE_PREFIX}{os.getpid()}-"):
            shutil.rmtree(left, ignore_errors=True)
    stage = root / f"{STAGE_PREFIX}{os.getpid()}-{new_id()}"
    stage.mkdir(mode=0o700)
    try:
        with ingester.segments_kept() if ingester else contextlib.nullcontext():
            store.db.copy_to(stage, but=without)
            spool = stage / "spool"
            spool.mkdir()
            for segment in (root / "spool").glob("*.seg"):
                with contextlib.suppress(FileNotFoundError):
                    os.link(segment, spool / segment.name)
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write(out: IO[bytes], root: Path, stage: Path, adapters: Path, tenants: Mapping[str, Path] | None = None) -> None:
    """The tar file, as it is to be unpacked into an empty ``data_dir``. Blocks as ``out`` does.

    ``tenants``: those that run, and the sockets of their control planes. Raises ``StoreError``: one has no backup.
    """
    within, served = root / TENANTS_FOLDER_NAME, tenants or {}
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, stage, Path())
        for path in sorted(root.iterdir()):
            plain = path.name not in _OF_A_RUN and ".duckdb" not in path.name and not path.name.startswith(STAGE_PREFIX)
            if plain and path != within and path.resolve() != adapters.resolve():
                _add(tar, path, Path(path.name))
        for path in sorted(within.iterdir()) if within.is_dir() else ():
            if path.name not in served:  # nobody has it open
                _add(tar, path, path.relative_to(root))
        add_tenants(tar, served, with_adapters=adapters == root / "adapters")
        _add(tar, adapters, Path("adapters"))


def _add(tar: tarfile.TarFile, path: Path, name: Path) -> None:
    """A file as long as it is now, or all that a folder holds. What goes meanwhile is left out."""
    if path.is_dir() and not path.is_symlink():
        for inner in sorted(path.iterdir()):
            _add(tar, inner, name / inner.name)
        return
    with contextlib.suppress(FileNotFoundError):
        info = tar.gettarinfo(path, str(name))  # None: a socket
        if info is not None and info.isreg():
            with path.open("rb") as file:
                info.size = min(info.size, os.fstat(file.fileno()).st_size)
                info.type, info.linkname = tarfile.REGTYPE, ""  # a segment has two names just now
                tar.addfile(info, file)
