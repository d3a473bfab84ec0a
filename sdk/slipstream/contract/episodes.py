"""Episodes, their calls and their rewards."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator

from slipstream.contract.base import Finite, Id, Model, RewardValue, Split, Tag
from slipstream.contract.batches import TaughtStep
from slipstream.contract.names import Named, NamedEpisode, TagText

FORGET_MOST = 2000
"""Episodes that one request forgets."""


class RewardFields(Model):
    """What a reward is, given or stored.

    The latest reward of one (episode, call, name) counts, whoever sent it: ``source`` is kept for people and for
    metrics. A batch keeps the rewards that it was leased with.
    """

    name: Tag = "reward"
    value: RewardValue
    source: Tag = "agent"
    call: Id | None = None
    """A call of the episode, when the reward is that call's alone."""
    reason: str | None = Field(default=None, max_length=20_000)
    key: str | None = Field(default=None, max_length=200)
    """Idempotency key: a second post with the same key changes nothing."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)


class RewardIn(RewardFields):
    """``POST episodes/{id}/rewards``."""

    known_as: ClassVar[Mapping[str, str]] = dict.fromkeys(("reward", "score", "rating", "points"), "value")
    done: bool | None = None
    """Whether the episode ends with this reward. None: it does if the reward is the whole episode's (no ``call``) and
    its name counts (``reward.weights``)."""

    def ends(self, weights: Collection[str]) -> bool:
        """Whether the episode ends with this reward, where rewards of these names count."""
        return self.done if self.done is not None else self.call is None and self.name in weights


WORDS_REWARD, THUMBS_REWARD = "words", "thumbs"
"""What the rewards are called that feedback is kept as."""


def words_in(name: str, meta: Mapping[str, JsonValue]) -> str | None:
    """What a user said, of a reward that feedback is kept as. ``meta`` of any other reward is its sender's own."""
    words = meta.get("words") if name in (WORDS_REWARD, THUMBS_REWARD) else None
    return words if isinstance(words, str) and words else None


def _spoken(text: str) -> str:
    """Raises ``ValueError`` for what nobody can read: spaces, control characters, characters without a width."""
    if all(unicodedata.category(character)[0] in "ZC" for character in text):
        raise ValueError("it has no character that can be read; leave it out, or say something")
    return text


class FeedbackIn(Model):
    """``POST episodes/{id}/feedback``: what a user says about a run, or about one of its calls.

    It is kept as a reward whose name is ``thumbs`` if there is a thumb, else ``words``. Text and a better reply are
    trained on once the run is over (docs/trainer.md). A thumb is a number: give it a weight in ``reward.weights``.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [n], "properties": {n: {"type": "string"}}} for n in ("text", "reply", "thumb")]
        }
    )
    known_as: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("edit", "edited", "better", "answer", "correction", "demonstration"), "reply"),
        **dict.fromkeys(("comment", "feedback", "message", "words", "reason"), "text"),
        **dict.fromkeys(("score", "rating", "value", "vote"), "thumb"),
    }
    text: Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(_spoken)] | None = None
    """What was wrong, or is wanted."""
    reply: Annotated[str, Field(min_length=1, max_length=100_000), AfterValidator(_spoken)] | None = None
    """A better reply to the call; without a call, how the run should have gone."""
    thumb: Literal["up", "down"] | None = None
    call: Id | None = None
    """The call that it is about (``x-slipstream-call``). None: the whole run."""
    key: str | None = Field(default=None, max_length=200)
    """Idempotency key: a second post with the same key changes nothing."""
    source: Tag | None = None
    """Who says it, as for a reward. None: ``user``; with a judge's key: ``judge``."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.text or self.reply or self.thumb):
            raise ValueError("it says nothing; give text, reply (a better one) or thumb (up or down)")
        return self

    def reward(self, source: str) -> RewardIn:
        """As it is kept. ``source``: who says it, if it does not say so itself.

        ``meta["words"]`` is what the model reads of it, and ``meta["edited"]`` the better reply.
        """
        better = f"A better reply would have been:\n\n{self.reply}" if self.reply else None
        words = "\n\n".join(part for part in (self.text, better) if part)
        meta: dict[str, JsonValue] = {"words": words} if words else {}
        if self.reply:
            meta["edited"] = self.reply
        value = {"up": 1.0, "down": -1.0, None: 0.0}[self.thumb]
        name = THUMBS_REWARD if self.thumb else WORDS_REWARD
        done = None if self.thumb else False
        return RewardIn(
            name=name,
            value=value,
            source=self.source or source,
            call=self.call,
            reason=self.text,
            key=self.key,
            meta=meta,
            done=done,
        )


class Reward(RewardFields):
    episode: Id
    at: Finite
    adapter: str | None = None


class RewardAck(Model):
    """What a reward or an end mark is answered with."""

    stored: bool
    """False: this idempotency key was there already."""
    known: bool
    """False: no call of the episode has arrived yet; it is kept and joined when one does."""
    fix: str | None = None
    """What to do if ``known`` stays false, or so that the reward trains where ``reward.weights`` does not name it."""
    done: bool = False
    """The episode ended with this: a later call of its name starts another one."""


Form = Literal["auto", "whole", "deltas"]
"""How calls travel. ``whole``: each with all of its prompt. ``deltas``: what a call shares with an earlier one stands
there alone (``CallRecord.prefix``). ``auto``: whole in runs of up to ``WHOLE_CALLS`` calls, deltas in longer ones."""
WHOLE_CALLS = 50


class SharedPrefix(Model):
    """What a call begins with: the first ``messages`` of an earlier call's messages and first reply, the first
    ``tokens`` of its prompt's and first choice's ids. What the call itself carries comes after these.

    ``slipstream.shared.prefixes`` puts calls together again.
    """

    call: Id
    messages: Annotated[int, Field(ge=0)] = 0
    tokens: Annotated[int, Field(ge=0)] = 0
    tools: bool = False
    """Whether the tools are that call's too."""


class CallRecord(Model):
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
    extends: Id | None = None
    """The call whose conversation this one goes on with. None: it begins one."""
    kind: str = "main"
    """What the call is in its run: ``main`` (the agent's own), ``subagent``, ``title``, ``summary``, ``compaction``,
    ``side``, or what its client said."""
    prefix: SharedPrefix | None = None
    """Where the beginning of ``messages``, ``prompt_ids`` and ``tools`` stands. None: they are whole."""

    @property
    def template_switches(self) -> dict[str, JsonValue]:
        """What the engine was told to set in the model's chat template."""
        found = self.sampling.get("chat_template_kwargs")
        return found if isinstance(found, dict) else {}


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
    arm: Literal["live", "control", "best", "candidate"] = "live"
    state: EpisodeState
    started: float
    ended: float | None
    """When the reply of its last call ended; None while it is open."""
    calls: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reward: float | None = None
    """The combined training reward (``reward.weights``); None while a name with a weight is missing, and of a run that
    failed."""
    group: str | None = None
    error: str | None = None
    """The run failed: in none of its calls the model said anything. This is the latest call's error. Such a run counts
    in no group, mean, curve or trial, whatever rewards it has."""


class Lineage(Model):
    """A batch that an episode was in."""

    batch: Id
    outcome: Literal["trained", "skipped"]
    adapter: str | None = None
    """What came of it, as its ack said."""
    advantage: Finite | None = None


class EpisodeDetail(Episode):
    call_list: list[CallRecord] = Field(default_factory=list)
    rewards: list[Reward] = Field(default_factory=list)
    advantage: Finite | None = None
    batches: list[str] = Field(default_factory=list)
    trained_adapters: list[str] = Field(default_factory=list)
    lineage: list[Lineage] = Field(default_factory=list)
    next_call: int | None = None
    """Pass as ``?calls_from=`` for the calls that follow; None: there are no more."""


class EpisodePage(Model):
    episodes: list[Episode]
    next: str | None = None
    """Pass as ``?cursor=`` for the next page; None at the end."""
    searched_to: float | None = None
    """A search in calls (``q``, ``outcome``, ``trainable``) looked back to episodes that began then, and ``next``
    goes on from there, also where this page is not full. None: it looked at all."""
    total: int | None = None
    """How many there are on all pages, where ``count`` asked for it. None: a search in calls does not count."""


class DoneIn(Model):
    """``POST episodes/{id}/done``: nothing more will come."""


class ForgetIn(Model):
    """``POST forget``: which episodes. An episode must match every filter that is given, and be one of the ids.

    Ids, tags and the user are any text, as the agent's calls had them.
    """

    episodes: list[NamedEpisode] = Field(default_factory=list, max_length=FORGET_MOST)
    key: str | None = Field(None, max_length=64, pattern="^[A-Za-z0-9_-]+$")
    """Episodes of this API key. Only an admin may name another's key."""
    tags: dict[Named, TagText] = Field(default_factory=dict)
    """With all of these tags (``x-slipstream-tag-<name>``)."""
    user: TagText | None = None
    """With the tag ``user`` of this value."""


class ForgottenTraces(Model):
    """Where forgotten episodes have gone."""

    adapters: list[str]
    """Adapters that were trained on one of them."""
    made_from: list[str] = Field(default_factory=list)
    """Those that were made from these, and go on with what they learned. ``slipstream adapters retrain`` helps."""
    anew: list[str] = Field(default_factory=list)
    """Those that were taken back for that and are trained anew (``store.forget``)."""
    steps: list[TaughtStep] = Field(default_factory=list)
    """Steps from it that no version has yet, and batches with it that the trainer has."""
    cases: list[str] = Field(default_factory=list)
    """Sets of cases that had a copy of one. The copies are gone."""
    exports: list[str] = Field(default_factory=list)
    """Datasets that one of them stands in (an export's ``x-slipstream-export``), which are where they were taken to;
    archives of days are rewritten without it.
    """


class ForgetOut(ForgottenTraces):
    forgotten: int
    unknown: list[str] = Field(default_factory=list)
    """Ids of no episode."""
    more: bool = False
    """There are more of them: ask again."""


class Deleted(ForgottenTraces):
    id: Id
