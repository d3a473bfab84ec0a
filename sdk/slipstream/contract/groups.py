"""Groups to look at: runs side by side, what they were trained into, and each token of a call."""

from __future__ import annotations

from pydantic import Field, JsonValue

from slipstream.contract.base import Id, Model
from slipstream.contract.episodes import Episode, Reward
from slipstream.contract.judging import GroupKind


class GroupSummary(Model):
    """A row of ``GET groups``."""

    id: Id
    kind: GroupKind
    key: str
    task: str | None
    model: str
    split: str
    state: str
    """``forming``, ``waiting_reward``, ``ready``, ``leased``, ``trained``, ``skipped``, ``stale``, ``dropped``,
    ``eval`` (never trained on), ``window`` (around a single episode, for the judge alone). A list without a kind or a
    state has neither windows nor what users said (``words``)."""
    cause: str | None = None
    """Why it is ``skipped``, ``stale`` or ``dropped``, or was trained on in vain."""
    episodes: int
    rewarded: int = 0
    """Episodes that have their reward."""
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    """The lowest and the highest of its rewards."""
    created: float
    completed: float | None = None
    ready_at: float | None = None
    batch: Id | None = None
    """The last batch that it was in."""
    step: int | None = None
    """The trainer's step that used it."""
    adapter: str | None = None
    """What came of that step."""
    attempts: int = 0
    """The judge's failures."""
    parked: bool = False
    failure: str | None = None
    """Why the judge did not score it when it last tried."""


class GroupPage(Model):
    groups: list[GroupSummary]
    next: str | None = None
    """Pass as ``?cursor=`` for the next page; None at the end."""


class RunJudgement(Model):
    """What a judge or a person said about a run."""

    name: str
    source: str
    value: float
    reason: str | None = None
    votes: list[float] = Field(default_factory=list)
    at: float
    meta: dict[str, JsonValue] = Field(default_factory=dict)


class GroupRun(Model):
    """One run of a group."""

    episode: Episode
    rewards: list[Reward] = Field(default_factory=list)
    judgements: list[RunJudgement] = Field(default_factory=list)
    """Its rewards with source ``judge`` or ``human``, the latest of each name first."""
    trained_reward: float | None = None
    """As the batch was leased with it."""
    advantage: float | None = None


class BatchSummary(Model):
    """Groups that a trainer leased together."""

    id: Id
    model: str
    state: str
    """``leased``, ``trained``, ``skipped``, ``released`` or ``expired``."""
    created: float
    step: int | None = None
    adapter: str | None = None
    """What came of it."""
    reason: str | None = None


class GroupDetail(GroupSummary):
    runs: list[GroupRun]
    batches: list[BatchSummary]
    """That it was in, oldest first."""


class BatchEpisodeLink(Model):
    episode: Id
    key: str
    group: Id
    reward: float | None = None
    advantage: float | None = None


class BatchDetail(BatchSummary):
    groups: list[Id]
    episodes: list[BatchEpisodeLink]


class BatchPage(Model):
    batches: list[BatchSummary]
    next: str | None = None


class Token(Model):
    """``text`` joins to the call's text. Of a character's tokens the last one has it, and the others are empty."""

    id: int
    text: str | None = None
    """None: no tokenizer was found (``tokenizer``)."""
    logprob: float | None = None
    trained: bool
    """Whether it counts in the loss."""
    masked: str | None = None
    """Why it does not."""
    advantage: float | None = None
    gap: float | None = None
    """The trainer's log-probability minus the engine's, where the trainer told it."""


class CallTokens(Model):
    """``GET calls/{id}/tokens``: what the engine read and sampled, token by token."""

    call: Id
    episode: Id
    key: str
    adapter: str | None
    trainable: bool
    untrainable_reason: str | None = None
    prompt: list[Token]
    prompt_left_out: int = 0
    """Tokens of the prompt before those in ``prompt``."""
    choices: list[list[Token]]
    tokenizer: str | None = None
    """Where the texts are from: a tokenizer's folder, or the engine's URL."""
    no_text: str | None = None
    """Why the tokens have no text."""
    advantage: float | None = None
    batch: Id | None = None
    step: int | None = None
    gap_mean: float | None = None
    """Mean distance of the trainer's and the engine's log-probabilities in that step."""
    gap_max: float | None = None
