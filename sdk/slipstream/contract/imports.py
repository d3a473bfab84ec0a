"""What became of each episode that was imported or restored."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.contract.base import Id, Model

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
