"""What is sent to the routes of this plug-in, and how they are asked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from slipstream import contract as c
from slipstream.client.ask import Ask, model
from slipstream.contract.base import Model

LOG_ROWS_MOST = 10_000
"""Rows of a file by which it is known again."""
LOG_FILES_MOST = 100_000


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


def import_files(files: LogFilesIn) -> Ask[LogFiles]:
    """Name files whose runs have no ids."""
    return Ask("POST", "/import/files", model(LogFiles), files)


def import_episode(episode: dict[str, Any]) -> Ask[c.Imported]:
    """Import a conversation from elsewhere: ``{"messages": […], "id", "task", "tags", "reward", …}``."""
    return Ask("POST", "/import", model(c.Imported), episode)


def import_episodes(conversations: list[dict[str, Any]]) -> Ask[c.ImportedMany]:
    """``import_episode`` of up to 256 at once: all of them or none."""
    return Ask("POST", "/import/conversations", model(c.ImportedMany), {"conversations": conversations})
