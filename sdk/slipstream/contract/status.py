"""Events, status and SQL: how users see where things stand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from slipstream.contract.base import Model, Tag
from slipstream.contract.funnel import Funnel
from slipstream.contract.judging import JudgingStatus


class Event(Model):
    """A line of ``GET training/events`` (NDJSON; ``?after=`` replays, ``?follow=true`` stays on)."""

    id: int = 0
    at: float = 0.0
    kind: Tag
    """``step``, ``skipped``, ``undone``, ``adapter``, ``promote``, ``rollback``, ``refused``, ``judge``, …"""
    data: dict[str, JsonValue] = Field(default_factory=dict)


class Sidecar(Model):
    """Trainer or judge of a ``slipstream up``. Where it is down, agents are served all the same."""

    name: str
    state: Literal["running", "restarting", "down", "ended"]
    """``down``: given up after too many failed starts. ``ended``: its work is done."""
    since: float
    starts: int = 1
    exit_code: int | None = None
    """The exit code of its last run; None while it runs."""
    reason: str | None = None
    """Its last words, where it is restarting or down."""


ForgettingStep = Literal["idle", "waiting", "database", "archives", "spool"]


class Forgetting(Model):
    """Forgotten episodes: nothing reads them any more, and files are rewritten without them, once for many."""

    episodes: int = 0
    """That some file may still hold."""
    since: float | None = None
    """When the first of these was forgotten."""
    step: ForgettingStep = "idle"
    """``waiting`` for more of them, else what is rewritten now."""
    error: str | None = None
    """Why the last try failed; it is tried again."""


class Status(Model):
    """``GET status``: where things stand, and why there was no step yet."""

    version: str
    scopes: list[str] = Field(default_factory=list)
    """Of the key that asks."""
    started: float
    models: dict[str, str]
    """Trained model → what is live."""
    engines: list[dict[str, JsonValue]] = Field(default_factory=list)
    store: Literal["duckdb", "postgresql"] | None = None
    """Which database it is."""
    episodes: dict[str, int] = Field(default_factory=dict)
    groups: dict[str, int] = Field(default_factory=dict)
    calls: int = 0
    capture_lost: int = 0
    ingest_lag_seconds: float = 0.0
    steps: int = 0
    last_step: float | None = None
    untrainable: dict[str, int] = Field(default_factory=dict)
    """Reason → calls."""
    waiting: list[str] = Field(default_factory=list)
    """The funnel's lines as sentences: what the next step waits for, with counts and fixes."""
    funnel: Funnel = Field(default_factory=Funnel)
    """Why there is no step yet."""
    batch: dict[str, JsonValue] = Field(default_factory=dict)
    judging: JudgingStatus = Field(default_factory=JudgingStatus)
    """The judge's queue and the copies of the judge."""
    forgetting: Forgetting = Field(default_factory=Forgetting)
    """What is forgotten, and still stands in some file."""
    sidecars: list[Sidecar] = Field(default_factory=list)
    """Empty where ``slipstream up`` does not run them."""


class Sql(Model):
    """``POST sql``: one SELECT over the documented views."""

    query: str = Field(min_length=1, max_length=100_000)
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1000


class SqlResult(Model):
    columns: list[str]
    rows: list[list[Any]]
    truncated: bool = False
