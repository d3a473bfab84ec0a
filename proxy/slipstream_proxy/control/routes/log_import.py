"""Logs of elsewhere read in: each assistant message becomes a call of text, beside rewards and the done mark."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from slipstream import contract as c
from slipstream_proxy.control.deps import Deps, unwritable
from slipstream_proxy.control.http import REWARD, Ctx, Routes, reply
from slipstream_proxy.control.ids import text_of
from slipstream_proxy.control.permissions import check_reward
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.routes.episodes import KeyQuery
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.records import IMPORTED, CallHead, Kind

UPSTREAM = "import"
MOST = 256
"""Conversations or episodes of one request."""
YEAR_2100 = 4_102_444_800.0
STEP = 0.001
"""Seconds between an imported episode's calls."""


class ImportMessage(BaseModel):
    """A chat message. What else it has (``tool_calls``, ``tool_call_id``, ``name``, …) is kept as it is."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1, max_length=64)
    content: JsonValue = None


class ImportIn(c.Model):
    """``POST import``: a conversation, its messages in order. Its assistant messages are the calls' replies."""

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

    @property
    def said(self) -> JsonObject:
        """What names it where it has no id."""
        return self.model_dump(mode="python", exclude={"id", "at", "reward", "metrics"})


class ConversationsIn(c.Model):
    conversations: list[ImportIn] = Field(min_length=1, max_length=MOST)


class Imported(c.Model):
    episode: c.Id
    calls: int
    """New ones: 0 when all of it was there already."""


class ImportedMany(c.Model):
    episodes: list[Imported]
    """As they were sent."""


def digest(*parts: Any) -> bytes:
    h = hashlib.blake2b(digest_size=10)
    for part in parts:
        h.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return h.digest()


def call_id(*parts: Any) -> str:
    """26 characters as other calls', a function of what the call says."""
    return IMPORTED + text_of(int.from_bytes(digest(*parts), "big"), 16)


def _dumped(message: ImportMessage) -> JsonObject:
    return message.model_dump(mode="python")


def calls_of(body: ImportIn, key: str, episode: str, at: float) -> list[tuple[CallHead, bytes, bytes]]:
    """A call for each assistant message: the messages before it as the request, itself as the reply."""
    found: list[tuple[CallHead, bytes, bytes]] = []
    messages = [_dumped(m) for m in body.messages]
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        request: JsonObject = {"model": body.model or UPSTREAM, "messages": messages[:i]}
        if body.tools:
            request["tools"] = body.tools
        answer = {
            "object": "chat.completion",
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": None}],
        }
        head = CallHead(
            id=call_id(key, episode, request, message),
            key=key,
            episode=episode,
            task=body.task,
            split=body.split,
            tags=dict(body.tags),
            model=request["model"],
            trained=None,
            adapter=None,
            arm="live",
            pin="control",
            dialect="chat",
            stream=False,
            at=at + STEP * len(found),
            seconds=0.0,
            first_byte=None,
            status=200,
            outcome="ok",
            upstream=UPSTREAM,
            external=True,
            origin=UPSTREAM,
            grouped=body.task is not None,
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


async def _prepare(ctx: Ctx, bodies: Sequence[ImportIn], fields: Sequence[str]) -> list[_Conversation]:
    """``fields``: where each body stands in the request. Raises ``Problem`` for one that cannot be read in."""
    deps, now = ctx.deps, ctx.deps.now()
    key = ctx.owner(ctx.query.key)
    names = [(key, body.id or f"import-{digest(key, body.said).hex()}") for body in bodies]
    standing = await deps.ask(deps.store.rewards.standing, names, now)
    found = []
    for body, name, field in zip(bodies, names, fields, strict=True):
        episode = name[1]
        if standing[name] == "gone":
            fix = "import it under another id"
            raise Problem(409, f"episode {episode} is forgotten", field=f"{field}.id", fix=fix)
        known: set[str] | None = None
        if standing[name] == "known":
            known = await deps.ask(deps.store.episodes.call_ids, key, episode)
            if any(not i.startswith(IMPORTED) for i in known):
                fix = "import it under another id"
                raise Problem(409, f"episode {episode} is one of the agent's own", field=f"{field}.id", fix=fix)
        calls = calls_of(body, key, episode, now if body.at is None else min(body.at, now))
        if not calls:
            fix = "import whole conversations"
            raise Problem(409, "none of its messages is an assistant's", field=f"{field}.messages", fix=fix)
        new = {call[0].id: call for call in calls if call[0].id not in (known or ())}
        rewards = [r for r in _rewards(ctx, body) if known is None or await _is_new(ctx, key, episode, r.key)]
        found.append(_Conversation(key, episode, list(new.values()), rewards))
    return found


def _rewards(ctx: Ctx, body: ImportIn) -> list[c.RewardIn]:
    values = {**body.metrics, **({} if body.reward is None else {"reward": body.reward})}
    for name in values:
        check_reward(ctx.caller, name, UPSTREAM, ctx.deps.judges.written)
    # the key: importing it again changes nothing, importing it with another value corrects it
    return [
        c.RewardIn(name=name, value=value, source=UPSTREAM, key=f"import-{name}-{value!r}")
        for name, value in values.items()
    ]


async def _is_new(ctx: Ctx, key: str, episode: str, idempotency: str | None) -> bool:
    ack = await ctx.deps.ask(ctx.deps.store.rewards.acknowledge, key, episode, idempotency, ctx.deps.now())
    return ack is None or ack.stored


async def _keep(deps: Deps, conversations: Sequence[_Conversation]) -> None:
    """Into the spool together, in this order; the last one's commit is waited for, which comes after the others'."""
    puts = [deps.mutations.writer.put(Kind.CALL, *call) for one in conversations for call in one.calls]
    changes: list[tuple[str, JsonObject]] = []
    for one in conversations:
        name = {"key": one.key, "episode": one.episode}
        changes += [("reward", {**name, "reward": given.model_dump(mode="json")}) for given in one.rewards]
        if one.calls:
            changes.append(("done", name))
    last = len(changes) - 1
    mutations = [deps.mutate(op, data, wait=10.0 if n == last else 0) for n, (op, data) in enumerate(changes)]
    kept = asyncio.gather(*puts)
    await asyncio.gather(*mutations)
    if not all(await kept):
        raise unwritable()


ROUTES = Routes()


@ROUTES.add("POST", "/import", (REWARD,), KeyQuery, ImportIn, result=Imported, errors=(409,))
async def post_import(ctx: Ctx) -> web.StreamResponse:
    """Import a conversation from elsewhere. A repeat changes nothing."""
    body: ImportIn = ctx.body
    found = await _prepare(ctx, [body], ["body"])
    await _keep(ctx.deps, found)
    return reply(Imported(episode=found[0].episode, calls=len(found[0].calls)))


@ROUTES.add("POST", "/import/conversations", (REWARD,), KeyQuery, ConversationsIn, result=ImportedMany, errors=(409,))
async def post_conversations(ctx: Ctx) -> web.StreamResponse:
    """Import up to 256 conversations at once. A repeat changes nothing.

    All of them are checked before the first is kept.
    """
    bodies = ctx.body.conversations
    found = await _prepare(ctx, bodies, [f"body.conversations.{n}" for n in range(len(bodies))])
    await _keep(ctx.deps, found)
    return reply(ImportedMany(episodes=[Imported(episode=one.episode, calls=len(one.calls)) for one in found]))
