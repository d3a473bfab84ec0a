"""Where things stand: status, events and SQL. And how engine and trainer share a GPU: who has it, and until when."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from slipstream.contract.base import Finite, Model, Tag
from slipstream.contract.funnel import Funnel
from slipstream.contract.judging import JudgingStatus
from slipstream.contract.learners import ModelLearner
from slipstream.contract.plugins import PluginStatus


class HoldIn(Model):
    """``POST engine/hold`` (``engine.share``): new calls wait and the engine sleeps, until ``engine/release`` or until
    ``seconds`` are over.

    The worker that has the hold posts it again to keep it.
    """

    worker: Tag
    seconds: Annotated[float, Field(gt=0, le=600)] = 30.0


class Hold(Model):
    worker: Tag
    until: float
    ready: bool
    """Every engine sleeps: its memory is the worker's. False: it is falling asleep; post again."""
    sleep_seconds: float = 0.0


class EngineReleaseIn(Model):
    """``POST engine/release``: the engine wakes, then the calls that wait go on."""

    worker: Tag


class EngineReleased(Model):
    held: bool
    """False: this worker had no hold (any more)."""
    wake_seconds: float = 0.0


class Event(Model):
    """A line of ``GET training/events`` (NDJSON; ``?after=`` replays, ``?follow=true`` stays on)."""

    id: int = 0
    at: Finite = 0.0
    kind: Tag
    """``step``, ``skipped``, ``undone``, ``adapter``, ``promote``, ``rollback``, ``refused``, ``judge``, …"""
    data: dict[str, JsonValue] = Field(default_factory=dict)


class Sidecar(Model):
    """Trainer or judge of a ``slipstream up``. Where it is down, agents are served all the same."""

    name: str
    state: Literal["running", "silent", "restarting", "down", "ended"]
    """``silent``: it runs and does not ask for work. ``down``: given up after too many failed starts.
    ``ended``: its work is done."""
    since: float
    starts: int = 1
    exit_code: int | None = None
    """The exit code of its last run; None while it runs."""
    reason: str | None = None
    """How it ended, where it is restarting or down; where it runs, how the run before this one did; where it is silent,
    for how long. As the words that follow its name: `ended with exit code 1: …`.
    """


ForgettingStep = Literal["idle", "waiting", "database", "archives", "spool"]


class ErasingProxy(Model):
    """Another proxy of the store, whose spool may still hold forgotten episodes."""

    proxy: str
    """What the file ``instance`` in its data folder says."""
    episodes: int
    away: bool = False
    """It has not been heard of for a minute. It erases them when it is back."""


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
    dropped: int = 0
    """Calls and rewards since the proxy's start that came for forgotten episodes. They were answered, and are not kept:
    a client that goes on with such an id loses all that it sends.
    """
    elsewhere: list[ErasingProxy] = Field(default_factory=list)
    """Other proxies that have them to erase, where several share a PostgreSQL."""


class Space(Model):
    """What a proxy's data folder takes, in bytes."""

    parts: dict[str, int] = Field(default_factory=dict)
    """``spool``, ``store``, ``adapters``, ``checkpoints``, … → bytes, the largest first. Empty: not measured yet."""
    limit: int | None = None
    """``data.max_gb``; None: there is none."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


class AdapterUse(Model):
    """How calls met their adapters in the engines since these started: vLLM's slots are a cache of all adapters. Of a
    proxy's own versions, or of a tenant's. All 0: no engine with the plugin has said it.
    """

    calls: int = 0
    loads: int = 0
    """Copies into a slot. Each was some call's; the other calls found their adapter there."""
    reads: int = 0
    """Loads that read the adapter's file, because the host's memory did not have it."""
    load_seconds: float = 0.0
    waits: int = 0
    """Calls that waited until their adapter had a slot."""
    wait_seconds: float = 0.0

    @property
    def hits(self) -> int:
        return max(0, self.calls - self.loads)


class Status(Model):
    """``GET status``: where things stand, and why there was no step yet."""

    version: str
    scopes: list[str] = Field(default_factory=list)
    """Of the key that asks."""
    started: float
    tenant: str = ""
    """Whose status it is. Empty: no tenant's."""
    tenants: int = 0
    """Whom the proxy serves beside itself."""
    models: dict[str, str]
    """Trained model → what is live."""
    canaries: dict[str, str] = Field(default_factory=dict)
    """Trained model → who gets the canary that is on trial, as ``GateReport.gets``."""
    headlines: dict[str, str] = Field(default_factory=dict)
    """Trained model → whether it is better than its base, and how sure that is, in one sentence."""
    engines: list[dict[str, JsonValue]] = Field(default_factory=list)
    adapter_use: AdapterUse = Field(default_factory=AdapterUse)
    learners: list[ModelLearner] = Field(default_factory=list)
    """Of each model the trainer that learns for it."""
    store: Literal["duckdb", "postgresql"] | None = None
    """Which database it is."""
    episodes: dict[str, int] = Field(default_factory=dict)
    siblings: int = 0
    """Further samples of agents' steps (``explore``). They are among no other count of episodes or calls."""
    groups: dict[str, int] = Field(default_factory=dict)
    calls: int = 0
    capture_lost: int = 0
    """Calls since the proxy's start that were answered and are not recorded. What was refused is not among them."""
    refused_writes: int = 0
    """Rewards, end marks and other changes since the control plane's start that were answered 503, because they could
    not be written down.
    """
    ingest_lag_seconds: float = 0.0
    steps: int = 0
    last_step: float | None = None
    moved_episodes: dict[str, int] = Field(default_factory=dict)
    """Cause → running episodes that changed their adapter since the proxy started: ``slot`` (the engine needed their
    version's slot), ``taken_back`` (the same, and the version was rolled back), ``refused`` (the engine refused it).
    """
    untrainable: dict[str, int] = Field(default_factory=dict)
    """Reason → calls."""
    waiting: list[str] = Field(default_factory=list)
    """The funnel's lines as sentences: what the next step waits for, with counts and fixes."""
    funnel: Funnel = Field(default_factory=Funnel)
    """Why there is no step yet."""
    plugins: list[PluginStatus] = Field(default_factory=list)
    batch: dict[str, JsonValue] = Field(default_factory=dict)
    judging: JudgingStatus = Field(default_factory=JudgingStatus)
    """The judge's queue and the copies of the judge."""
    forgetting: Forgetting = Field(default_factory=Forgetting)
    """What is forgotten, and still stands in some file."""
    space: Space = Field(default_factory=Space)
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
