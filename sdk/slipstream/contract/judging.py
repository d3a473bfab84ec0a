"""The judge's work: groups of episodes, and scores for them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from slipstream.contract.base import Finite, Id, Model, RewardValue, Split, Tag
from slipstream.contract.episodes import CallRecord, Episode, Reward


class GroupLeaseIn(Model):
    worker: Tag
    names: list[Tag] = Field(default_factory=lambda: ["judge"], min_length=1)
    """Reward names that the worker writes: a group is work as long as one of its episodes lacks one of them."""
    seconds: Annotated[float, Field(gt=0, le=3600)] = 120.0
    limit: Annotated[int, Field(ge=1, le=64)] = 1
    singles: bool = False
    """Also hand out ungrouped episodes, as groups of kind ``window`` with their most alike recent scored ones."""
    form: Literal["auto", "deltas"] = "auto"
    """How the calls of runs travel (``episodes.Form``)."""
    groups: list[Id] = Field(default_factory=list, max_length=64)
    """These groups alone, complete or not, also if they have their scores or were trained on: ``judge rerun``."""


class RerunIn(Model):
    """``POST judge/reruns``: what is about to be scored again, for the audit log."""

    id: Id
    text: Annotated[str, Field(min_length=1, max_length=2000)]


class GroupKind(StrEnum):
    TASK = "task"
    """Runs of one task: compared with each other."""
    LIKE = "like"
    """Ungrouped traffic with the same system prompt and tools: batch-level baseline."""
    WINDOW = "window"
    """One episode to score, beside recent alike ones that are scored already."""
    WORDS = "words"
    """One episode that a user said something about. Nobody scores it."""


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
    both_orders: bool = False
    """It is judged in an order and in the reverse one: a replay's replies, side by side."""


class GroupLease(Model):
    lease: Id
    until: float
    groups: list[Group]


class Score(Model):
    """One score of one episode, 0 to 1 (a ``judge.function`` may give any). ``values`` are the votes; ``value`` their
    mean.
    """

    episode: Id
    name: Tag = "judge"
    source: Tag = "judge"
    value: RewardValue
    reason: str = ""
    values: list[Finite] = Field(default_factory=list)
    meta: dict[str, JsonValue] = Field(default_factory=dict)
    """Model, prompt version, rubric hash, votes, tokens, cost in dollars, latency in seconds, mode, cached."""


class ScoresIn(Model):
    """``POST groups/{id}/scores``: scores, or why the judge failed. Posting the same twice under one lease changes
    nothing, and something else is refused.
    """

    lease: Id
    scores: list[Score] = Field(default_factory=list)
    failed: str | None = None
    retry_after: Annotated[float, Field(ge=0, le=86_400)] | None = None
    """Seconds until it is handed out again; a failure counts towards ``judge.max_attempts`` unless this is set."""


class JudgeSpent(Model):
    """What all copies of a judge spent on this UTC day, as far as this copy knows, and its limits (None: no limit)."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    tokens_limit: int | None = None
    dollars_limit: float | None = None


class JudgeAgreement(Model):
    """How far the judge's scores go with another's. ``value``: a correlation from -1 to 1 over ``pairs`` episodes."""

    value: float | None = None
    pairs: int = 0


class JudgeReport(Model):
    """``POST judge/report``: how one copy of the judge stands. It reports every few seconds, also while it waits."""

    worker: Tag
    names: list[Tag] = Field(default_factory=lambda: ["judge"], min_length=1)
    model: str | None = None
    function: str | None = None
    singles: bool = True
    concurrency: int = 1
    working: int = 0
    """Groups that it holds now."""
    groups_per_minute: Finite = 0.0
    """Over the last five minutes."""
    seconds_per_group: Finite | None = None
    """Mean of the last 200 groups, from lease to score."""
    cost_per_group: Finite | None = None
    """Dollars; None where LiteLLM knows no price."""
    spread: Finite | None = None
    """Mean standard deviation of an episode's votes; None with one vote."""
    scored: int = 0
    failed: int = 0
    postponed: int = 0
    lost: int = 0
    """Scored, and the proxy did not take the scores."""
    last_error: str | None = None
    """Why the latest group was not scored; None where it was."""
    waits_for: str | None = None
    """The setting of the budget that it waits for."""
    waits_until: Finite | None = None
    spent: JudgeSpent = Field(default_factory=JudgeSpent)
    audit: JudgeAgreement = Field(default_factory=JudgeAgreement)
    """With the second model (rank correlation in groups)."""
    between_votes: JudgeAgreement = Field(default_factory=JudgeAgreement)
    """With itself, where it saw the same runs in another order; ``pairs`` are groups. Near 0: its scores are chance."""
    by_chance: bool = False
    """Surely no more than that (``slipstream_judge.trust.consistency``)."""


class JudgeBacklog(Model):
    """The judge's queue: complete groups that lack a score and are handed out now or later."""

    groups: int = 0
    oldest_seconds: float | None = None
    """Age of the oldest, since it was complete."""
    parked: int = 0


class JudgeStatus(JudgeReport):
    at: float
    """When it reported."""


class LabelAgreement(Model):
    """How far people agree who labelled the same run under the same name, each with a key of their own."""

    runs: int
    people: int
    pairs: int
    same: float
    """Share of pairs of labels with one value. The true one lies between ``low`` and ``high`` in 95 of 100 cases."""
    low: float
    high: float
    distance: float
    """Mean distance of the two values."""


class JudgingStatus(Model):
    """Part of ``GET status``. ``judges``: the copies that reported within the last minute."""

    judges: list[JudgeStatus] = Field(default_factory=list)
    backlog: JudgeBacklog = Field(default_factory=JudgeBacklog)
    seconds_behind: float | None = None
    """The backlog over the judges' rate: how long they would take for it. None: no rate is known."""
    agent: JudgeAgreement = Field(default_factory=JudgeAgreement)
    """The judge's scores and the agents' own rewards."""
    human: JudgeAgreement = Field(default_factory=JudgeAgreement)
    """The judge's scores and people's."""
    people: LabelAgreement | None = None
    """People among each other. None: no two have labelled the same run."""


class CacheEntry(Model):
    """``GET/PUT judge/cache/{key}``: the judge's cache, kept in the store."""

    key: Id
    value: dict[str, JsonValue]
    at: float = 0.0
    group: Id | None = None
    """The leased group that the answer is about: it is refused if the lease is lost, as once a run is forgotten."""
    lease: Id | None = None
