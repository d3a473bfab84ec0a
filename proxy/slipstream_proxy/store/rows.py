"""Rows of the tables. Their fields are the tables' columns (``schema.columns_like``)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Self

from slipstream.contract import Episode, EpisodeState, Reward, RewardIn, Split
from slipstream_proxy.store.codec import clean, dump, load
from slipstream_proxy.store.driver import Row


def eid_of(key: str, episode: str) -> str:
    """An episode's identity: its API key and its id."""
    return f"{key}/{episode}"


@dataclass(slots=True)
class EpisodeRow:
    """A row of ``t_episodes``. The ingester changes it in place before it is written back."""

    eid: str
    key: str
    id: str
    task: str | None = None
    split: str = "train"
    tags: str = "{}"
    model: str = ""
    adapter: str | None = None
    arm: str = "live"
    state: str = "open"
    started: float = 0.0
    last_at: float = 0.0
    ended: float | None = None
    calls: int = 0
    trained_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reward: float | None = None
    grp: str | None = None
    grouped: bool = True
    alike: str = ""
    adapters: str = "[]"
    retried: bool = False
    untagged: bool = False
    """No header, path or key named it: the data plane did."""
    last_end: float = 0.0
    """When its last call ended."""
    idle: bool = False
    """It is done because no call came, and goes on if one does after all."""
    chances: str | None = ""
    """The probability of each arm when it was assigned (``assignment.Assignment``)."""

    def row(self) -> Row:
        return tuple(getattr(self, name) for name in EPISODE_FIELDS)

    def public(self) -> Episode:
        return Episode(
            id=self.id,
            key=self.key,
            task=self.task,
            split=Split(self.split),
            tags=load(self.tags, {}),
            model=self.model,
            adapter=self.adapter,
            arm=self.arm if self.arm in ("control", "candidate", "best") else "live",
            state=EpisodeState(self.state),
            started=self.started,
            ended=None if self.ended is None else max(self.ended, self.last_end),
            calls=self.calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            reward=self.reward,
            group=self.grp,
        )


EPISODE_FIELDS = tuple(f.name for f in fields(EpisodeRow))
EPISODE_COLUMNS = ", ".join(EPISODE_FIELDS)


class CallRow(NamedTuple):
    """A row of a day's table of calls.

    Of messages, tools and prompt_ids it holds what ``delta_base`` does not have (``delta``).
    """

    id: str
    eid: str
    number: int
    ts: float
    seconds: float
    dialect: str
    model: str
    trained: str | None
    adapter: str | None
    status: int
    outcome: str
    trainable: bool
    reason: str | None
    sampling: str | None
    temperature: float
    delta_base: str | None
    keep_messages: int
    keep_tokens: int
    messages: str | None
    tools: str | None
    reply: str | None
    finish: str
    prompt_tokens: int
    completion_tokens: int
    prompt_ids: bytes
    completion_ids: bytes
    lengths: bytes
    logprobs: bytes
    error: str | None
    body_hash: str
    attempt: int
    extra: str | None
    extends: str | None = None


class RewardRow(NamedTuple):
    """A row of ``t_rewards``. ``seq`` is given when it is inserted."""

    id: str
    seq: int
    eid: str
    call: str | None
    name: str
    source: str
    value: float
    reason: str | None
    idem: str | None
    meta: str
    ts: float

    @classmethod
    def of(cls, id: str, eid: str, given: RewardIn | Reward, at: float) -> Self:
        """The row of a reward that was posted or exported."""
        texts = (clean(given.reason), clean(given.key), dump(given.meta))
        return cls(id, 0, eid, given.call, given.name, given.source, given.value, *texts, at)

    def public(self, adapter: str | None) -> Reward:
        """``adapter``: the episode's."""
        return Reward(
            episode=self.eid.split("/", 1)[1],
            call=self.call,
            name=self.name,
            source=self.source,
            value=self.value,
            reason=self.reason,
            key=self.idem,
            meta=load(self.meta, {}),
            at=self.ts,
            adapter=adapter,
        )


class PinRow(NamedTuple):
    """A row of ``t_pins``: which adapter answers an episode."""

    eid: str
    model: str
    adapter: str
    arm: str
    ts: float
    active: bool = True
    chances: str = ""


class GroupRow(NamedTuple):
    """A row of ``t_groups``: episodes that are compared, or the window around a single one."""

    id: str
    bucket: str
    ordinal: int
    kind: str
    key: str
    task: str | None
    model: str
    split: str
    state: str
    n: int
    created: float
    completed: float | None = None
    ready_at: float | None = None
    batch: str | None = None
    attempts: int = 0
    parked: bool = False
    retry_at: float | None = 0.0
    judge_lease: str | None = None
    judge_until: float | None = None
    judge_worker: str | None = None
    judge_last: str | None = None
    single: str | None = None
    cause: str | None = None
    """Why it is ``stale``, ``dropped`` or ``skipped``."""


class BatchRow(NamedTuple):
    """A row of ``t_batches``: groups that a trainer leased together."""

    id: str
    lease: str
    worker: str
    model: str
    state: str
    until: float
    created: float
    adapter: str | None = None
    step: int | None = None
    reason: str | None = None


class MemberRow(NamedTuple):
    """A row of ``t_members``: an episode of a batch, its reward when it was leased, and what the trainer made of it."""

    batch: str
    grp: str
    eid: str
    reward: float | None = None
    advantage: float | None = None


CALL_COLUMNS = ", ".join(CallRow._fields)
REWARD_COLUMNS = ", ".join(RewardRow._fields)
GROUP_COLUMNS = ", ".join(GroupRow._fields)
BATCH_COLUMNS = ", ".join(BatchRow._fields)
