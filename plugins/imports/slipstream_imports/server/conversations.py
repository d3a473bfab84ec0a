"""Conversations of other tools' logs: each assistant message becomes a call of text, beside rewards."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from slipstream import contract as c
from slipstream.contract import IMPORT_UPSTREAM, KeyScope
from slipstream_proxy.control.api.http import (
    Ctx,
    Routes,
    check_reward,
    reply,
)
from slipstream_proxy.control.api.routes.episodes import KeyQuery
from slipstream_proxy.control.api.routes.restore import redacted_call
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.access import Change, unwritable
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.ids import text_of
from slipstream_proxy.log.records import IMPORTED_ID_PREFIX, CallHead, Kind
from slipstream_proxy.redaction import Redaction, redaction_of
from slipstream_proxy.store.values import KnownEpisode

if TYPE_CHECKING:
    pass

MAX_REQUEST_CONVERSATIONS = 256
"""Conversations or episodes of one request."""
YEAR_2100 = 4_102_444_800.0
CALL_SPACING_S = 0.001
"""Seconds between an imported episode's calls."""


class ImportMessage(BaseModel):
    """A chat message. What else it has (``tool_calls``, ``tool_call_id``, ``name``, …) is kept as it is."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1, max_length=64)
    content: JsonValue = None

    @property
    def is_said(self) -> bool:
        """Whether a model said it, and it may be imitated."""
        weight = (self.model_extra or {}).get("weight")
        return self.role == "assistant" and not (isinstance(weight, int | float) and weight == 0)


class ImportReply(c.Model):
    """What is known of one of the messages as a model's reply."""

    message: int = Field(ge=0)
    """Its place among the messages, from 0."""
    at: float | None = Field(default=None, ge=0, le=YEAR_2100)
    """When it was asked for, seconds since the epoch."""
    seconds: float | None = Field(default=None, ge=0, le=YEAR_2100)
    """How long the call took."""
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    model: str | None = Field(default=None, min_length=1, max_length=200)
    kind: Literal["main", "subagent", "side"] | None = None
    """What it is in its run; None: found by how it begins."""


class ImportIn(c.Model):
    """``POST import``: a conversation, its messages in order.

    Its assistant messages are the calls' replies, but those of ``weight`` 0, which nothing is to imitate.
    """

    id: c.Named | None = None
    """The episode's; None: one made of the conversation, so that the same one is the same episode."""
    task: c.Named | None = None
    split: Annotated[str, Field(pattern="^(train|eval)$")] = "train"
    model: str | None = Field(default=None, min_length=1, max_length=200)
    messages: list[ImportMessage] = Field(min_length=1, max_length=10_000)
    tools: list[JsonValue] | None = None
    reward: c.Finite | None = None
    metrics: dict[c.Named, c.Finite] = Field(default_factory=dict)
    """More rewards, by name."""
    tags: dict[c.Named, c.TagText] = Field(default_factory=dict)
    at: float | None = Field(default=None, ge=0, le=YEAR_2100)
    """When it began, seconds since the epoch; None: now."""
    replies: list[ImportReply] | None = Field(default=None, max_length=10_000)
    """Which of the messages a model said in this episode; None: all of the assistant's. The rest is context."""

    @property
    def replied(self) -> dict[int, ImportReply]:
        """Place of each message that becomes a call → what is known of it."""
        named = self.replies
        if named is None:
            named = [ImportReply(message=i) for i in range(len(self.messages))]
        return {r.message: r for r in named if r.message < len(self.messages) and self.messages[r.message].is_said}

    @property
    def said(self) -> JsonObject:
        """What names it where it has no id."""
        return self.model_dump(mode="python", exclude={"id", "at", "reward", "metrics", "replies"})


class ConversationsIn(c.Model):
    conversations: list[ImportIn] = Field(min_length=1, max_length=MAX_REQUEST_CONVERSATIONS)


def digest(*parts: Any) -> bytes:
    h = hashlib.blake2b(digest_size=10)
    for part in parts:
        h.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return h.digest()


def call_id(*parts: Any) -> str:
    """26 characters as other calls', a function of what the call says."""
    return IMPORTED_ID_PREFIX + text_of(int.from_bytes(digest(*parts), "big"), 16)


def _dumped(message: ImportMessage) -> JsonObject:
    return message.model_dump(mode="python")


def calls_of(
    body: ImportIn, key: str, episode: str, at: float, latest: float = YEAR_2100
) -> list[tuple[CallHead, bytes, bytes]]:
    """A call for each reply: the messages before it as the request, itself as the answer.

    ``at``: of the first call, seconds since the epoch. A reply with a time of its own has that time, up to ``latest``.
    """
    found: list[tuple[CallHead, bytes, bytes]] = []
    messages = [_dumped(m) for m in body.messages]
    for i, told in sorted(body.replied.items()):
        model = told.model or body.model or IMPORT_UPSTREAM
        request: JsonObject = {"model": model, "messages": messages[:i]}
        if body.tools:
            request["tools"] = body.tools
        answer: JsonObject = {
            "object": "chat.completion",
            "model": model,
            "choices": [{"index": 0, "message": messages[i], "finish_reason": None}],
        }
        if told.prompt_tokens is not None or told.completion_tokens is not None:
            counts = {"prompt_tokens": told.prompt_tokens or 0, "completion_tokens": told.completion_tokens or 0}
            answer["usage"] = counts | {"total_tokens": sum(counts.values())}
        head = CallHead(
            id=call_id(key, episode, request, messages[i]),
            key=key,
            episode=episode,
            task=body.task,
            split=body.split,
            tags=dict(body.tags),
            model=model,
            trained=None,
            adapter=None,
            arm="live",
            pin="control",
            dialect="chat",
            stream=False,
            at=max(at, min(at if told.at is None else told.at, latest)) + CALL_SPACING_S * len(found),
            seconds=told.seconds or 0.0,
            first_byte=None,
            status=200,
            outcome="ok",
            upstream=IMPORT_UPSTREAM,
            external=True,
            origin=IMPORT_UPSTREAM,
            grouped=body.task is not None,
            kind=told.kind or "",
        )
        found.append((head, json.dumps(request).encode(), json.dumps(answer).encode()))
    return found


@dataclass(slots=True)
class _Conversation:
    """What is new of a conversation."""

    key: str
    episode: str
    calls: list[tuple[CallHead, bytes, bytes]]
    rewards: list[c.RewardIn]
    told: c.Imported


async def _prepare(ctx: Ctx, bodies: Sequence[ImportIn], fields: Sequence[str]) -> list[_Conversation]:
    """``fields``: where each body stands in the request. Raises ``Problem`` for one that cannot be read in."""
    deps, now = ctx.deps, ctx.deps.now()
    key = ctx.owner(ctx.query.key)
    redaction = redaction_of(deps.config)
    if redaction is not None:
        bodies = [_renamed(redaction, body) for body in bodies]
    names = [(key, body.id or f"import-{digest(key, body.said).hex()}") for body in bodies]
    standing = await deps.ask(deps.store.standings.of, names, now)
    there = [name for name in names if standing[name] == "known"]
    if there:
        await deps.arrived()  # the rewards of an import just before may still be on their way
    stored: dict[tuple[str, str], KnownEpisode] = await deps.ask(deps.store.episodes.standing, there) if there else {}
    found = []
    for body, name, field in zip(bodies, names, fields, strict=True):
        episode = name[1]
        if standing[name] == "gone":
            fix = "import it under another id"
            raise Problem(409, f"episode {episode} is forgotten", field=f"{field}.id", fix=fix)
        known = stored.setdefault(name, KnownEpisode())
        if any(not i.startswith(IMPORTED_ID_PREFIX) for i in known.calls):
            fix = "import it under another id"
            raise Problem(409, f"episode {episode} is one of the agent's own", field=f"{field}.id", fix=fix)
        calls = calls_of(body, key, episode, now if body.at is None else min(body.at, now), now)
        if not calls:
            fix = "import whole conversations"
            raise Problem(
                409, "none of its messages is an assistant's reply with a weight", field=f"{field}.messages", fix=fix
            )
        new = {call[0].id: call for call in calls if call[0].id not in known.calls}
        if redaction is not None:
            new = await in_thread(_redacted_calls, redaction, new)
        rewards = list(_rewards(ctx, body, known))
        told = c.Imported(episode=episode, calls=len(new))
        if standing[name] == "known":
            told.state = "changed" if new or rewards else "there"
            told.kept = [] if new or redaction else _kept(body, known)
        found.append(_Conversation(key, episode, list(new.values()), rewards, told))
    return found


def _renamed(redaction: Redaction, body: ImportIn) -> ImportIn:
    """With the names that a conversation may have here."""
    names: dict[str, Any] = {
        "id": body.id and redaction.id("episode", c.said_of(body.id), body.id),
        "task": body.task and redaction.name("task", c.said_of(body.task)),
        "model": body.model and redaction.text("model", body.model),
        "tags": {redaction.name("tag_name", c.said_of(name)): c.said_of(value) for name, value in body.tags.items()},
        "metrics": {redaction.name("reward.name", c.said_of(name)): value for name, value in body.metrics.items()},
    }
    if body.replies is not None:
        models = [reply.model and redaction.text("model", reply.model) for reply in body.replies]
        names["replies"] = [
            reply.model_copy(update={"model": model}) for reply, model in zip(body.replies, models, strict=True)
        ]
    return body.model_copy(update=names)


def _redacted_calls(
    redaction: Redaction, calls: dict[str, tuple[CallHead, bytes, bytes]]
) -> dict[str, tuple[CallHead, bytes, bytes]]:
    found = {}
    for name, (head, asked, given) in calls.items():
        request, answer, tags = redacted_call(redaction, json.loads(asked), json.loads(given), head.tags)
        found[name] = replace(head, tags=tags), json.dumps(request).encode(), json.dumps(answer).encode()
    return found


def _rewards(ctx: Ctx, body: ImportIn, known: KnownEpisode) -> Iterator[c.RewardIn]:
    """Those that are new or corrected. ``known`` has them from now on."""
    for name, value in {**body.metrics, **({} if body.reward is None else {"reward": body.reward})}.items():
        check_reward(ctx.caller, name, IMPORT_UPSTREAM, ctx.deps.judges.written)
        before, times = known.rewards.get(name, (None, 0))
        if before != value:
            known.rewards[name] = value, times + 1
            # the key: two imports at once are one, and a value that comes back corrects its correction
            key = f"import-{name}-{value!r}" + (f"-{times}" if times else "")
            yield c.RewardIn(name=name, value=value, source=IMPORT_UPSTREAM, key=key)


def _kept(body: ImportIn, known: KnownEpisode) -> list[str]:
    """Fields that differ from the stored episode's."""
    differs = {
        "task": body.task not in (None, known.task),
        "split": body.split != known.split,
        "tags": any(known.tags.get(tag) != value for tag, value in body.tags.items()),
    }
    return [name for name, other in differs.items() if other]


async def _keep(deps: Deps, conversations: Sequence[_Conversation]) -> None:
    """Into the spool together, in this order; the last one's commit is waited for, which comes after the others'."""
    puts = [deps.mutations.writer.put(Kind.CALL, *call) for one in conversations for call in one.calls]
    changes: list[Change] = []
    for one in conversations:
        name = {"key": one.key, "episode": one.episode}
        changes += [("reward", {**name, "reward": given.model_dump(mode="json")}) for given in one.rewards]
        if one.calls:
            changes.append(("done", name))
    kept = asyncio.gather(*puts)
    await deps.mutate_all(changes)
    if not all(await kept):
        raise unwritable()


CONVERSATION_ROUTES = Routes()


@CONVERSATION_ROUTES.add("POST", "/import", (KeyScope.ADMIN,), KeyQuery, ImportIn, result=c.Imported, errors=(409,))
async def post_import(ctx: Ctx) -> web.StreamResponse:
    """Import a conversation from elsewhere. A repeat changes nothing."""
    body: ImportIn = ctx.body
    found = await _prepare(ctx, [body], ["body"])
    await _keep(ctx.deps, found)
    return reply(found[0].told)


@CONVERSATION_ROUTES.add(
    "POST", "/import/conversations", (KeyScope.ADMIN,), KeyQuery, ConversationsIn, result=c.ImportedMany, errors=(409,)
)
async def post_conversations(ctx: Ctx) -> web.StreamResponse:
    """Import up to 256 conversations at once. A repeat changes nothing.

    All of them are checked before the first is kept.
    """
    bodies = ctx.body.conversations
    found = await _prepare(ctx, bodies, [f"body.conversations.{n}" for n in range(len(bodies))])
    await _keep(ctx.deps, found)
    return reply(c.ImportedMany(episodes=[one.told for one in found]))
