"""What shows afterwards why a figure of a run is bad: the store and the spool as they are, what was acknowledged, and what the store said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

MOST = 3
"""Folders of evidence that one run keeps."""
LEFT_OUT = ("ballast", "*.sock", "metrics")


def keep(folder: Path, name: str, data: Mapping[str, Path], facts: Mapping[str, object]) -> Path:
    """Copy these data folders, and write the facts down, into ``folder/evidence-NAME``: on the disk, where a mounted one goes with the run.

    Of the first three times; the facts are always written.
    """
    kept = folder / f"evidence-{name}"
    full = len(list(folder.glob("evidence-*"))) >= MOST
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "facts.json").write_text(json.dumps(facts, default=sorted, indent=1))
    for part, source in {} if full else data.items():
        shutil.copytree(
            source,
            kept / part,
            ignore=shutil.ignore_patterns(*LEFT_OUT),
            dirs_exist_ok=True,
            ignore_dangling_symlinks=True,
        )
    return kept
