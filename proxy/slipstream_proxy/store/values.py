"""What goes into a store and comes out of it: plain values, without behaviour."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Literal, NamedTuple

import pyarrow as pa

from slipstream_proxy.log.records import CallHead, Parsed

SAME_REWARD_DISTANCE = 1e-8
"""Rewards that differ by less are equal, to the trainer too."""


@dataclass(slots=True)
class RecordedCall:
    """A call as the ingester hands it over: the record's head and what its dialect read."""

    head: CallHead
    parsed: Parsed
    response_id: str | None = None
    """What the engine called its reply."""
    previous_id: str | None = None
    """The response that the request goes on with, by its id."""


@dataclass(slots=True, frozen=True, order=True)
class Position:
    """How far a spool writer's segments are ingested."""

    segment: int
    offset: int


@dataclass(slots=True)
class Rules:
    """The part of the configuration that the store's answers depend on."""

    weights: dict[str, float] = field(default_factory=lambda: {"reward": 1.0})
    credit: str = "episode"
    group_size: int = 8
    group_max_age: float = 3600.0
    ungrouped: bool = True
    idle_timeout: float = 900.0
    orphan_ttl: float = 3600.0
    judge_max_attempts: int = 4
    window: int = 7
    key_share: float = 0.5
    """At most this share of a batch's groups is one key's, when there are others'."""
    max_staleness: int = 4
    """Versions behind the live one that are still trained on (``trainer.max_staleness``)."""
    untrained_kinds: frozenset[str] = frozenset({"title"})
    """Kinds of calls that are not trained on (``kinds``)."""
    judged: tuple[str, ...] = ("judge",)
    """Names of the rewards that judges give."""


@dataclass(slots=True)
class EpisodeFilter:
    key: str | None = None
    """None: every key's (an admin asks)."""
    task: str | None = None
    split: str | None = None
    adapter: str | None = None
    state: str | None = None
    model: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    reward_min: float | None = None
    reward_max: float | None = None
    since: float | None = None
    until: float | None = None
    tagged: list[str] = field(default_factory=list)
    """Names of tags that it has, whatever their values."""
    replays: bool = True
    """Also runs that ``slipstream replay --run`` played."""
    q: str | None = None
    """Words and "phrases" that its messages, its id, task and tags hold, all of them; or a call's id."""
    outcome: str | None = None
    """One of its calls has this outcome."""
    failed: bool = False
    """Only those in which the model never said anything."""
    trainable: bool | None = None
    """Whether one of its calls is."""
    kind: str | None = None
    """One of its calls is of this kind."""
    among: Collection[str] | None = None
    """Only these episodes (key/id)."""
    cursor: str | None = None
    limit: int = 50
    count: bool = False
    """Say how many there are on all pages."""
    patience: float = 1.0
    """Seconds that a search in calls (``q``, ``outcome``, ``trainable``) looks back for a page."""


@dataclass(slots=True)
class Pin:
    adapter: str
    arm: str
    chances: str = ""
    """The probability of each arm when the episode was assigned (``assignment.Assignment``)."""


class RewardAsk(NamedTuple):
    """Does a reward or an end mark of this episode count? ``begun``: a call of it has come."""

    key: str
    episode: str
    idempotency: str | None = None
    begun: bool = False
    call: str | None = None
    """The call that it is of."""
    anyone: bool = False
    """Whose episode is meant is found by its id, unless this key has one."""

    def of(self, owners: Sequence[str]) -> str:
        """The key whose episode is meant, of those that have one of this id."""
        return owners[0] if self.anyone and owners and self.key not in owners else self.key


How = Literal["new", "known", "forgotten", "late"]
"""``late``: the episode is unknown, and its rewards have waited ``orphan_ttl``."""


class Standing(NamedTuple):
    """How an episode stands to a reward."""

    how: How = "new"
    key: str = ""
    """Whose it is."""
    stored: bool = True
    """A reward of it is to be written: the store has none of the same idempotency key."""
    owners: tuple[str, ...] = ()
    """Keys that have an episode of this id."""
    call: bool = True
    """It has the call that was asked for."""
    split: str | None = None

    @property
    def known(self) -> bool:
        return self.how == "known"


@dataclass(slots=True)
class KnownEpisode:
    """What an import compares with: of an episode that is stored, or of none."""

    task: str | None = None
    split: str = "train"
    tags: dict[str, str] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    rewards: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Of imports, by name: the latest value, and how many there were."""


class PinAsk(NamedTuple):
    """What an episode without a pin gets."""

    key: str
    episode: str
    model: str
    adapter: str
    arm: str
    now: float
    chances: str = ""
    task: str | None = None
    kept: bool = True
    """False: it is told and not stored, because the call is not recorded."""


class Outcome(NamedTuple):
    """A training episode's assignment, or its reward as it was first known."""

    seq: int
    adapter: str
    arm: str
    chances: str
    task: str
    reward: float | None
    """None: the episode was assigned. NaN: it failed."""
    at: float = 0.0
    """When it was assigned, or when its reward became final; seconds since the epoch."""
    eid: str = ""
    named: str | None = None
    """The task that its agent named."""
    tags: str = "{}"
    """JSON. Of its first call, so they do not depend on the adapter."""

    @property
    def failed(self) -> bool:
        return self.reward is not None and isnan(self.reward)


@dataclass(slots=True)
class ArrowBatch:
    id: str
    lease: str
    until: float
    table: pa.Table
    """``contract.BATCH_COLUMNS``."""


class Erasing(NamedTuple):
    """A forgotten episode whose bytes are still in some file."""

    key: str
    episode: str
    since: float
    tables: Sequence[str] | None
    """Tables that had calls of it; None: another proxy rewrites the database."""
    archives: tuple[str, ...]
    """Archives that have it."""


class Forgotten(NamedTuple):
    """What was known of episodes that were forgotten together."""

    names: list[tuple[str, str]]
    """Those that there were, by (key, id)."""
    adapters: list[str]
    """Trained on one of them."""
    exports: list[str]
    """Datasets that hold one of them, archives apart."""
    cases: list[str]
    """Sets of cases that held a copy of one of them."""
    batches: list[str]
    """That one of them was in, whatever became of these."""


Name = tuple[str, str]
"""An episode by (key, id)."""
