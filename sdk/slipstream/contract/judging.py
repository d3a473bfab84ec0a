"""The judge's work: groups of episodes, and scores for them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, JsonValue

from slipstream.contract.base import Finite, Id, Model, Split, Tag
from slipstream.contract.episodes import CallRecord, Episode, Reward


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
    calls: list[CallRecord]
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
