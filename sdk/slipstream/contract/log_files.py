"""Logs that are read in: which files are known, and what became of each episode."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from slipstream.contract.base import Id, Model

LOG_ROWS_MOST = 10_000
"""Rows of a file by which it is known again."""
LOG_FILES_MOST = 100_000
ImportState = Literal["new", "there", "changed"]


class Imported(Model):
    episode: Id
    calls: int
    """New ones: 0 when all of it was there already."""
    state: ImportState = "new"
    """``changed``: it was there, and has new calls or other rewards now."""
    kept: list[str] = Field(default_factory=list)
    """Fields in which an episode that was there differs from what was sent. They stay as they were."""


class ImportedMany(Model):
    episodes: list[Imported]
    """As they were sent."""


class LogFile(Model):
    """A file whose runs have no ids. Its hashes tell it from others."""

    path: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    """Of where it lies."""
    rows: Annotated[
        dict[str, Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]],
        Field(min_length=1, max_length=LOG_ROWS_MOST),
    ]
    """A run's place in the file → a hash of what it says (8 digits) and of its rewards (4)."""


class LogFilesIn(Model):
    """``POST import/files``: the files of one import."""

    files: list[LogFile] = Field(min_length=1, max_length=LOG_FILES_MOST)


class LogFiles(Model):
    names: list[str]
    """Of each file, as they were sent: the one that it had before, or a new one."""
