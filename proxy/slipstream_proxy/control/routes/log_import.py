"""Logs of elsewhere read in: each assistant message becomes a call of text, beside rewards and the done mark."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from slipstream import contract as c
from slipstream_proxy.control.http import REWARD, Ctx, Route, reply
from slipstream_proxy.control.ids import text_of
from slipstream_proxy.control.permissions import check_reward
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.routes.episodes import KeyQuery
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.records import CallHead, Kind

UPSTREAM = "import"
PREFIX = "0" * 10
"""Where other ids have their time: imported ones sort before all of them, so that what the store knows of new ids stays
true.
"""
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

    id: c.Tag | None = None
    """The episode's; None: one made of the conversation, so that the same one is the same episode."""
    task: c.Tag | None = None
    split: Annotated[str, Field(pattern="^(train|eval)$")] = "train"
    model: str | None = Field(default=None, min_length=1, max_length=200)
    messages: list[ImportMessage] = Field(min_length=1, max_length=10_000)
    tools: list[JsonValue] | None = None
    reward: c.Finite | None = None
    metrics: dict[c.Tag, c.Finite] = Field(default_factory=dict)
    """More rewards, by name."""
    tags: dict[c.Tag, c.Tag] = Field(default_factory=dict)
    at: float | None = Field(default=None, ge=0, le=YEAR_2100)
    """When it began, seconds since the epoch; None: now."""


class Imported(c.Model):
    episode: c.Id
    calls: int
    """New ones: 0 when all of it was there already."""


def digest(*parts: Any) -> bytes:
    h = hashlib.blake2b(digest_size=10)
    for part in parts:
        h.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return h.digest()


def call_id(*parts: Any) -> str:
    """26 characters as other calls', a function of what the call says."""
    return PREFIX + text_of(int.from_bytes(digest(*parts), "big"), 16)


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


async def _known(ctx: Ctx, key: str, episode: str) -> set[str] | None:
    """Ids of its imported calls; None: it is new. An episode that is no imported one is left alone."""
    deps = ctx.deps
    ack = await deps.ask(deps.store.rewards.acknowledge, key, episode, None, deps.now())
    if ack is None:
        raise Problem(409, f"episode {episode} is forgotten", field="body.id", fix="import it under another id")
    if not ack.known:
        return None
    known = await deps.ask(deps.store.episodes.call_ids, key, episode)
    if any(not i.startswith(PREFIX) for i in known):
        raise Problem(
            409, f"episode {episode} is one of the agent's own", field="body.id", fix="import it under another id"
        )
    return known


async def _is_new(ctx: Ctx, key: str, episode: str, idempotency: str | None) -> bool:
    ack = await ctx.deps.ask(ctx.deps.store.rewards.acknowledge, key, episode, idempotency, ctx.deps.now())
    return ack is None or ack.stored


async def post_import(ctx: Ctx) -> web.StreamResponse:
    deps = ctx.deps
    body: ImportIn = ctx.body
    key = ctx.owner(ctx.query.key)
    said = body.model_dump(mode="python", exclude={"id", "at", "reward", "metrics"})
    episode = body.id or f"import-{digest(key, said).hex()}"
    rewards = {**body.metrics, **({} if body.reward is None else {"reward": body.reward})}
    for name in rewards:
        check_reward(ctx.caller, name, UPSTREAM, deps.config.judge.name)
    known = await _known(ctx, key, episode)
    calls = calls_of(body, key, episode, deps.now() if body.at is None else min(body.at, deps.now()))
    if not calls:
        raise Problem(
            409, "no message of it is an assistant's", field="body.messages", fix="import whole conversations"
        )
    new = {call[0].id: call for call in calls if call[0].id not in (known or ())}
    for head, request, answer in new.values():
        if not await deps.mutations.writer.put(Kind.CALL, head, request, answer):
            raise Problem(
                503,
                "this cannot be kept just now: the spool cannot be written",
                fix="free the disk and send it again",
                headers={"retry-after": "5"},
            )
    for name, value in rewards.items():
        # the key: importing it again changes nothing, importing it with another value corrects it
        given = c.RewardIn(name=name, value=value, source=UPSTREAM, key=f"import-{name}-{value!r}")
        if known is None or await _is_new(ctx, key, episode, given.key):
            await deps.mutate(
                "reward", {"key": key, "episode": episode, "reward": given.model_dump(mode="json")}, wait=0
            )
    if new:
        await deps.mutate("done", {"key": key, "episode": episode})
    return reply(Imported(episode=episode, calls=len(new)))


ROUTES = [
    Route(
        "POST",
        c.API + "/import",
        post_import,
        "Read a conversation of elsewhere in; again changes nothing",
        (REWARD,),
        KeyQuery,
        ImportIn,
        responses={200: Imported},
        errors=(409,),
    ),
]
