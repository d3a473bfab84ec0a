"""Adapters, and where they stand at the gate."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, JsonValue

from slipstream.contract.base import Id, Model


class AdapterState(StrEnum):
    LOADING = "loading"
    CANDIDATE = "candidate"
    """In the engine, the gate has not decided."""
    LIVE = "live"
    RETIRED = "retired"
    """Was live, a later one is."""
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"


class AdapterIn(Model):
    """``POST adapters``: a folder under ``adapters.dir`` (a multipart upload of the files makes that folder itself)."""

    path: str
    """Relative to ``adapters.dir``. The name is the folder's: ``<model>@<n>``."""
    model: str | None = None
    step: int | None = None
    parent: str | None = None
    batches: list[Id] = Field(default_factory=list)
    meta: dict[str, JsonValue] = Field(default_factory=dict)


class Adapter(Model):
    name: str
    """``<model>@<n>``; immutable, never used again."""
    model: str
    version: int
    state: AdapterState
    reason: str | None = None
    """Of the state: why refused, what the gate saw."""
    created: float
    decided: float | None = None
    path: str
    parent: str | None = None
    step: int | None = None
    batches: list[str] = Field(default_factory=list)
    episodes: int = 0
    """Open episodes pinned to it."""
    loaded: bool = False
    numbers: dict[str, JsonValue] = Field(default_factory=dict)
    """What the gate decided on."""


class AdapterList(Model):
    adapters: list[Adapter]
    live: dict[str, str]
    """Trained model → the adapter (or base model) that new episodes get."""


class GateIn(Model):
    """``POST adapters/{v}/promote`` and ``…/rollback``."""

    reason: str | None = None
