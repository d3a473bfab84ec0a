"""The contract: what proxy, judge, trainer and users say to each other over the control API.

Every model here is a JSON body of ``/slipstream/v1/…`` (DESIGN section 6 has the list of routes). Bulk token data goes
as Arrow IPC streams; ``BATCH_COLUMNS`` names their columns. Times are seconds since the epoch, UTC, as floats.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

ID_PATTERN = r"^[A-Za-z0-9._~-]{1,160}$"
"""Stored ids: what a client may choose (``TAG_PATTERN``), and what we add to it (``~2``, a call's number)."""
TAG_PATTERN = r"^[A-Za-z0-9._-]{1,128}$"
TAG = re.compile(TAG_PATTERN.removesuffix("$") + r"\Z")  # "$" alone lets a newline through

Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
Tag = Annotated[str, StringConstraints(pattern=TAG_PATTERN)]
Finite = Annotated[float, Field(allow_inf_nan=False)]

API = "/slipstream/v1"


class Headers:
    """Header names of the data plane (DESIGN section 3). None of the ``x-slipstream-*`` ever reaches the engine."""

    PREFIX = "x-slipstream-"
    EPISODE = "x-slipstream-episode"
    TASK = "x-slipstream-task"
    SPLIT = "x-slipstream-split"
    DONE = "x-slipstream-done"
    TAG = "x-slipstream-tag-"
    CALL = "x-slipstream-call"
    ADAPTER = "x-slipstream-adapter"


class Split(StrEnum):
    TRAIN = "train"
    EVAL = "eval"
    OFF = "off"
    """Relay, store nothing."""


class Model(BaseModel):
    """Base of all bodies: an unknown field is an error, so that a typo is told and not swallowed."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Error(Model):
    """The one shape of every control-API error: ``{"error": {...}}``."""

    class Detail(Model):
        type: str
        message: str
        field: str | None = None
        fix: str | None = None

    error: Detail


# --- episodes -------------------------------------------------------------------------------------------------------


class RewardIn(Model):
    """``POST episodes/{id}/rewards``. The latest row of one (episode, name, source) wins; a batch freezes what it leased."""

    name: Tag = "reward"
    value: Finite
    source: Tag = "agent"
    call: Id | None = None
    """A call of the episode, when the reward is that call's alone."""
    reason: str | None = Field(default=None, max_length=20_000)
    key: str | None = Field(default=None, max_length=200)
    """Idempotency key: a second post with the same key changes nothing."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)


class Reward(RewardIn):
    episode: Id
    at: float
    adapter: str | None = None


class RewardAck(Model):
    stored: bool
    """False: this idempotency key was there already."""
    known: bool
    """False: no call of the episode has arrived yet; the reward is kept and joined when one does."""


class Call(Model):
    """One request to the engine and its reply. ``choices`` are all that were sampled (n > 1 gives several)."""

    id: Id
    episode: Id
    number: int
    """Position in its episode, from 0."""
    at: float
    seconds: float
    dialect: str
    model: str
    """The name that the client asked for."""
    adapter: str | None
    """What served it: an adapter's name, or the base model's."""
    trained: str | None = None
    """The trained model that the client's name stands for; None: a base model or an upstream of elsewhere."""
    status: int
    outcome: Literal["ok", "aborted", "error", "superseded"]
    trainable: bool
    untrainable_reason: str | None = None
    sampling: dict[str, JsonValue] = Field(default_factory=dict)
    messages: list[Any] = Field(default_factory=list)
    """The request's messages (prompt, input), as the client sent them."""
    tools: list[Any] = Field(default_factory=list)
    reply: list[Any] = Field(default_factory=list)
    """A message for each choice, in the request's own format."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_ids: list[int] | None = None
    completion_ids: list[list[int]] | None = None
    logprobs: list[list[float]] | None = None
    finish_reason: str | None = None
    error: str | None = None
    """The error body, of a call that failed (cut at 4 KiB)."""
    parent: Id | None = None


class EpisodeState(StrEnum):
    OPEN = "open"
    DONE = "done"
    DELETED = "deleted"


class Episode(Model):
    id: Id
    key: str
    """The API key's id; ``-`` where no keys are configured."""
    task: str | None
    split: Split
    tags: dict[str, str] = Field(default_factory=dict)
    model: str
    adapter: str | None
    arm: Literal["live", "control", "candidate"] = "live"
    state: EpisodeState
    started: float
    ended: float | None
    calls: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reward: float | None = None
    """The combined training reward (``reward.weights``); None while a name with a weight is missing."""
    group: str | None = None


class Lineage(Model):
    """A batch that an episode was in."""

    batch: Id
    outcome: Literal["trained", "skipped"]
    adapter: str | None = None
    """What came of it, as its ack said."""
    advantage: float | None = None


class EpisodeDetail(Episode):
    call_list: list[Call] = Field(default_factory=list)
    rewards: list[Reward] = Field(default_factory=list)
    advantage: float | None = None
    batches: list[str] = Field(default_factory=list)
    trained_adapters: list[str] = Field(default_factory=list)
    lineage: list[Lineage] = Field(default_factory=list)


class EpisodePage(Model):
    episodes: list[Episode]
    next: str | None = None
    """Pass as ``?cursor=`` for the next page; None at the end."""


class DoneIn(Model):
    """``POST episodes/{id}/done``: nothing more will come."""


class Deleted(Model):
    id: Id
    adapters: list[str]
    """Adapters that were trained on it."""
    exports: list[str] = Field(default_factory=list)
    """Datasets that it stands in (an export's ``x-slipstream-export``), which are where they were taken to; archives of days are written anew without it."""


# --- the judge's work -----------------------------------------------------------------------------------------------


class GroupLeaseIn(Model):
    worker: Tag
    names: list[Tag] = Field(default_factory=lambda: ["judge"], min_length=1)
    """Reward names that the worker writes: a group is work as long as one of its episodes lacks one of them."""
    seconds: Annotated[float, Field(gt=0, le=3600)] = 120.0
    limit: Annotated[int, Field(ge=1, le=64)] = 1
    singles: bool = False
    """Also hand out ungrouped episodes, as groups of kind ``window`` with their most alike recent scored ones."""


class GroupKind(StrEnum):
    TASK = "task"
    """Runs of one task: compared with each other."""
    LIKE = "like"
    """Ungrouped traffic with the same system prompt and tools: batch-level baseline."""
    WINDOW = "window"
    """One episode to score, beside recent alike ones that are scored already."""


class GroupEpisode(Model):
    episode: Episode
    calls: list[Call]
    rewards: list[Reward]
    context: bool = False
    """True: here to compare with, has its score already."""


class Group(Model):
    id: Id
    kind: GroupKind
    key: str
    task: str | None
    split: Split
    model: str
    episodes: list[GroupEpisode]
    attempts: int = 0


class GroupLease(Model):
    lease: Id
    until: float
    groups: list[Group]


class Score(Model):
    """One score of one episode. ``values`` are the votes; ``value`` their mean."""

    episode: Id
    name: Tag = "judge"
    source: Tag = "judge"
    value: Finite
    reason: str = ""
    values: list[Finite] = Field(default_factory=list)
    meta: dict[str, JsonValue] = Field(default_factory=dict)
    """Model, prompt version, rubric hash, votes, tokens, cost in dollars, latency in seconds, mode, cached."""


class ScoresIn(Model):
    """``POST groups/{id}/scores``: scores or, when the judge failed, why. Posting twice under one lease changes nothing."""

    lease: Id
    scores: list[Score] = Field(default_factory=list)
    failed: str | None = None
    retry_after: float | None = None
    """Seconds until it is handed out again; a failure counts towards ``judge.max_attempts`` unless this is set."""


class CacheEntry(Model):
    """``GET/PUT judge/cache/{key}``: the judge's cache, kept in the store."""

    key: Id
    value: dict[str, JsonValue]
    at: float = 0.0


# --- the trainer's work ---------------------------------------------------------------------------------------------


class BatchLeaseIn(Model):
    """``POST batches/lease`` → 200 with an Arrow IPC stream (``BATCH_COLUMNS``), or 204: not enough scored groups yet.

    The reply's headers: ``x-slipstream-batch`` (id), ``x-slipstream-lease`` and ``x-slipstream-until``.
    """

    worker: Tag
    model: str | None = None
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    min_groups: Annotated[int, Field(ge=1)] = 8
    max_groups: Annotated[int, Field(ge=1)] = 16
    max_wait: Annotated[float, Field(ge=0)] = 60.0
    """Seconds after which fewer than ``min_groups`` are enough, counted from when the oldest waiting group was ready."""
    max_staleness: Annotated[int, Field(ge=0)] = 4


BATCH_COLUMNS = (
    "group",  # str: group id
    "kind",  # str: GroupKind
    "episode",  # str
    "task",  # str | null
    "call",  # str
    "number",  # int32: position of the call in its episode
    "choice",  # int32: 0 … n-1
    "adapter",  # str: what sampled it
    "staleness",  # int32: versions behind the live one
    "temperature",  # float32
    "trainable",  # bool
    "untrainable_reason",  # str | null
    "prompt_ids",  # list<int32>
    "completion_ids",  # list<int32>
    "logprobs",  # list<float32>, of completion_ids
    "reward",  # float64: the episode's training reward, frozen at lease
    "call_reward",  # float64 | null
)


class BatchAck(Model):
    """``POST batches/{id}/ack``. ``trained``: its groups never come back. ``released``: they do, at once."""

    lease: Id
    outcome: Literal["trained", "skipped", "released"]
    adapter: str | None = None
    step: int | None = None
    reason: str | None = None
    advantages: dict[str, Finite] = Field(default_factory=dict)
    """Of each episode, for the page."""


# --- adapters -------------------------------------------------------------------------------------------------------


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


class Adapters(Model):
    adapters: list[Adapter]
    live: dict[str, str]
    """Trained model → the adapter (or base model) that new episodes get."""


class GateIn(Model):
    """``POST adapters/{v}/promote`` and ``…/rollback``."""

    reason: str | None = None


# --- one GPU for engine and trainer ---------------------------------------------------------------------------------


class HoldIn(Model):
    """``POST engine/hold`` (``engine.share``): new calls wait and the engine sleeps, until ``engine/release`` or until ``seconds`` are over.

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


# --- events and status ----------------------------------------------------------------------------------------------


class Event(Model):
    """A line of ``GET training/events`` (NDJSON; ``?after=`` replays, ``?follow=true`` stays on)."""

    id: int = 0
    at: float = 0.0
    kind: Tag
    """``step``, ``skipped``, ``undone``, ``adapter``, ``promote``, ``rollback``, ``refused``, ``judge``, …"""
    data: dict[str, JsonValue] = Field(default_factory=dict)


class Status(Model):
    """``GET status``: where things stand, and why there was no step yet."""

    version: str
    started: float
    models: dict[str, str]
    """Trained model → what is live."""
    engines: list[dict[str, JsonValue]] = Field(default_factory=list)
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
    """Plain sentences: what the next step waits for, with counts."""
    batch: dict[str, JsonValue] = Field(default_factory=dict)


class Sql(Model):
    """``POST sql``: one SELECT over the documented views."""

    query: str = Field(min_length=1, max_length=100_000)
    limit: Annotated[int, Field(ge=1, le=100_000)] = 1000


class SqlResult(Model):
    columns: list[str]
    rows: list[list[Any]]
    truncated: bool = False
