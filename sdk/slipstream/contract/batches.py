"""The trainer's work: batches of scored groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from slipstream.contract.base import Finite, Id, Model, Tag
from slipstream.contract.names import NamedEpisode


class BatchLeaseIn(Model):
    """``POST batches/lease`` → 200 with an Arrow IPC stream (``BATCH_COLUMNS``), or 204: not enough scored groups yet.

    The reply's headers: ``x-slipstream-batch`` (id), ``x-slipstream-lease`` and ``x-slipstream-until``.
    """

    worker: Tag
    model: str | None = None
    learner: Id | None = None
    """The token of the trainer that learns for the model (``POST learner``). None: only where there is no such."""
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    min_groups: Annotated[int, Field(ge=1)] = 8
    max_groups: Annotated[int, Field(ge=1)] = 16
    max_wait: Annotated[float, Field(ge=0)] = 60.0
    """Seconds after which fewer than ``min_groups`` are enough, counted from when the oldest that counts was ready. If
    they have less than eight runs in all, it takes four times as long.
    """
    max_staleness: Annotated[int, Field(ge=0)] = 4
    form: Literal["auto", "deltas"] = "auto"
    """How the calls of runs travel (``episodes.Form``)."""
    equal: Literal["whole", "rewards"] = "whole"
    """``rewards``: groups of one task whose runs all have the same reward come without their calls, and besides
    ``max_groups``. A comparison learns nothing from them, so they do not count toward ``min_groups`` either.
    """

    stored: bool = False
    """Only groups that somebody asked to train on again (``POST training/again``). They come after all others else."""


class TrainAgainIn(Model):
    """``POST training/again``, with the filters of ``GET episodes``: groups that have such a run."""

    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often each group is to have been trained on, in all, with the rewards that it has now. 1: what never was."""
    dry_run: bool = False
    """Only say what would be trained on."""


class TrainAgain(Model):
    groups: int
    passes: int
    """Of groups through the trainer."""
    episodes: int
    corrected: int
    """Groups that were trained on with other rewards than they have now."""
    left_out: dict[str, int]
    """Why → groups: ``trained`` (often enough), ``equal_rewards``, ``not_scored``, ``eval``, ``rolled_back``, …"""


class TrainAnewIn(Model):
    """``POST training/anew``: versions are taken back, and what they were trained on is trained on anew.

    One of both fields is needed.
    """

    adapter: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The first of them: a name or a version's number. None: the first that was trained on one of ``without``."""
    without: list[NamedEpisode] = Field(default_factory=list, max_length=2000)
    """Ids of episodes whose groups are left out."""
    dry_run: bool = False
    """Only say what would be done."""


class TrainAnew(TrainAgain):
    adapters: list[str]
    """What is taken back: the first version, and what was made from it."""
    start: str
    """What new runs get, and training goes on from."""
    between: list[str] = Field(default_factory=list)
    """Versions between ``start`` and ``adapters``, as the gate had not decided on them. Training goes on from before
    them: what they were trained on comes once more, too.
    """


class TaughtStep(Model):
    """A step that no version has yet, or a batch that may become one."""

    model: str
    batch: Id
    step: int | None = None
    """None: the trainer has the batch, and has told of no step."""
    dropped: bool = False
    """It comes into no version: the trainer drops it, and trains on the rest again (``store.forget = "retrain"``). If
    not, the next version of the model is made from it.
    """


class TrainAgainStopped(Model):
    groups: int
    """That are not trained on any more."""


BATCH_COLUMNS = (
    "group",  # str: group id
    "kind",  # str: GroupKind
    "episode",  # str
    "task",  # str | null
    "call",  # str
    "number",  # int32: position of the call in its episode
    "choice",  # int32: 0 … n-1
    "adapter",  # str: what sampled it
    "staleness",  # int32: versions behind the live one; above max_staleness it is baseline only, if it is not stored
    "temperature",  # float32
    "trainable",  # bool: false leaves the row out of the loss, never its reward out of the group's baseline
    "untrainable_reason",  # str | null: why not; stale for a run that is too old, the control arm's for one
    "prompt_ids",  # list<int32>
    "completion_ids",  # list<int32>
    "logprobs",  # list<float32>, of completion_ids
    "reward",  # float64: the episode's training reward, frozen at lease
    "call_reward",  # float64 | null
    "key",  # str: the API key's id; with it, an episode's id is unique
    "filter",  # list<float32> | null: min_p, top_k and top_p, where one of them cut tokens off
    "prefix_row",  # int32 | null: an earlier row that the prompt begins with; prompt_ids holds what comes after
    "prefix_tokens",  # int32: how much of that row's prompt and completion; 0 without a prefix_row
    "hint",  # str | null: what a user said about it; its group has the kind words then
    "tags",  # str | null: the run's tags as JSON, by name, without Slipstream's own
)


def filter_of(sampling: Mapping[str, JsonValue]) -> tuple[float, float, float] | None:
    """A call's min_p, top_k (0: all) and top_p; None where none of them cuts a token off."""
    names = {"min_p": 0.0, "top_k": 0.0, "top_p": 1.0}
    try:
        found = [float(sampling.get(n, x)) for n, x in names.items()]  # type: ignore[arg-type]
    except (TypeError, ValueError):  # unreadable: such a call is not trained on
        return None
    min_p, top_k, top_p = max(found[0], 0.0), max(found[1], 0.0), min(found[2], 1.0)
    return None if (min_p, top_k, top_p) == (0.0, 0.0, 1.0) else (min_p, top_k, top_p)


class BatchAck(Model):
    """``POST batches/{id}/ack``. ``trained``: its groups never come back. ``released``: they do, at once."""

    lease: Id
    learner: Id | None = None
    """As in ``POST batches/lease``. Where another trainer has taken over, the ack is refused."""
    outcome: Literal["trained", "skipped", "released"]
    adapter: str | None = None
    step: int | None = None
    reason: str | None = None
    advantages: dict[str, Finite] = Field(default_factory=dict)
    """``<key>/<episode>`` → its advantage, for the page. An episode's id alone is taken too."""
    words: dict[str, dict[Id, Finite]] = Field(default_factory=dict)
    """Group of kind ``words`` → call → mean of what the words changed in a token's log-probability, in nats."""


class ChoiceGaps(Model):
    """The trainer's log-probability minus the engine's, of each sampled token of a choice."""

    key: str
    episode: Id
    call: Id
    choice: int = Field(0, ge=0, le=100_000)
    gaps: list[Finite] = Field(max_length=1_000_000)


class BatchGaps(Model):
    """``POST batches/{id}/gaps``: for people who look at tokens. The trainer tells of a bounded number of them."""

    lease: Id
    calls: list[ChoiceGaps] = Field(max_length=100_000)
