"""Adapters leave the trainer: a folder that appears whole, under a name that was never used."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from slipstream.contract import AdapterList, folder_of
from slipstream.errors import SlipstreamError
from slipstream.shared.files import sync
from slipstream_trainer.model.adapter import check_adapter


def sync_folder(folder: Path) -> None:
    """Fsync a folder's files, then the folder."""
    for path in [*(p for p in folder.rglob("*") if p.is_file()), folder]:
        sync(path)


def rename_whole(temporary: Path, final: Path) -> None:
    """Make ``temporary`` appear as ``final``, durably. Raises ``FileExistsError`` when that name is taken."""
    if final.exists():
        raise FileExistsError(str(final))
    sync_folder(temporary)
    temporary.rename(final)
    sync(final.parent)


def temporary_of(final: Path, owner: str | None = None) -> Path:
    """The folder that becomes ``final``. ``owner``: the trainer's own name, under which it finds what it left."""
    return final.parent / f".tmp-trainer-{owner or uuid4().hex}-{final.name}"


def sweep(folder: Path, owner: str = "") -> None:
    """Remove what a killed writer left half-written. Where others write too, only what is ``owner``'s."""
    for old in folder.glob(f".tmp-trainer-{owner}*"):
        shutil.rmtree(old, ignore_errors=True)


def version_of(name: str) -> int:
    """The version n of ``<model>@<n>``; 0 is the base model."""
    number = name.rpartition("@")[2] if "@" in name else ""
    return int(number) if number.isdigit() else 0


def next_version(model: str, folder: Path, known: AdapterList | None) -> int:
    """1 + the highest version ever used, by the proxy's word and by the folder's."""
    pattern = re.compile(re.escape(folder_of(model)) + r"@([0-9]+)")
    names = [p.name for p in folder.glob(f"{folder_of(model)}@*")] if folder.is_dir() else []
    found = [int(m[1]) for n in names if (m := pattern.fullmatch(n))]
    found += [a.version for a in known.adapters if a.model == model] if known else []
    return 1 + max(found, default=0)


def write_adapter(write: Callable[[Path], None], final: Path, max_rank: int, owner: str | None = None) -> None:
    """Have ``write`` save PEFT's files, which appear whole as ``final``. Raises ``SlipstreamError`` if unusable."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(final, owner)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        write(temporary)
        if why := check_adapter(temporary, max_rank):
            raise SlipstreamError(f"vLLM would refuse the adapter: {why}")
        rename_whole(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
