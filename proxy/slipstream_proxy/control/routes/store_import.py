"""What another Slipstream exported, put back whole: episodes with their ids, tokens, log-probabilities, rewards and
lineage; adapters with their states.

This is how a store moves (DuckDB → PostgreSQL): export there, import here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field, StringConstraints

from slipstream import contract as c
from slipstream_proxy.control.http import ADMIN, Ctx, Routes, json_of, reply
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.routes.log_import import MOST, Imported, ImportedMany
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store import schema

Count = Annotated[int, Field(ge=0, lt=2**31)]
Time = Annotated[float, Field(ge=0, le=253_402_300_799.0)]
Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Name = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")]


class CallIn(c.CallRecord):
    number: Count
    at: Time
    seconds: Annotated[float, Field(ge=0, le=1e9)]
    dialect: Name
    model: Name
    adapter: Name | None
    trained: Name | None = None
    status: Annotated[int, Field(ge=0, lt=1000)]
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_ids: list[Count] | None = None
    completion_ids: list[list[Count]] | None = None
    logprobs: list[list[c.Finite]] | None = None


class EpisodeIn(c.EpisodeDetail):
    """A line of ``export?format=jsonl``."""

    key: Key
    task: c.Tag | None
    split: Literal["train", "eval"]  # type: ignore[assignment]
    tags: dict[c.Tag, c.Tag] = Field(default_factory=dict)
    model: Name
    adapter: Name | None
    state: Literal["open", "done"]  # type: ignore[assignment]
    started: Time
    ended: Time | None
    calls: Count
    prompt_tokens: Annotated[int, Field(ge=0, lt=2**53)] = 0
    completion_tokens: Annotated[int, Field(ge=0, lt=2**53)] = 0
    reward: c.Finite | None = None
    group: c.Id | None = None
    call_list: list[CallIn] = Field(default_factory=list)  # type: ignore[assignment]


class EpisodesIn(c.Model):
    """Lines of ``export?format=jsonl``."""

    episodes: list[EpisodeIn] = Field(min_length=1, max_length=MOST)


class BroughtIn(c.Model):
    adapters: int
    """New ones."""


async def check(ctx: Ctx, bodies: Sequence[EpisodeIn], fields: Sequence[str]) -> list[EpisodeIn]:
    """Those that are new here. ``fields``: where each stands in the request. Raises ``Problem`` for a wrong one."""
    deps = ctx.deps
    standing = await deps.ask(deps.store.rewards.standing, [(e.key, e.id) for e in bodies], deps.now())
    for body, field in zip(bodies, fields, strict=True):
        known = {call.id for call in body.call_list}
        if len({call.id for call in body.call_list if call.episode == body.id}) != len(body.call_list):
            text = "calls of another episode, or one twice"
            raise Problem(409, text, field=f"{field}.call_list", fix="send it as exported")
        if strange := next((c.prefix.call for c in body.call_list if c.prefix and c.prefix.call not in known), None):
            fix = "send all calls of the episode, as exported"
            text = f"a call begins with call {strange}, which is not here"
            raise Problem(409, text, field=f"{field}.call_list", fix=fix)
        if standing[body.key, body.id] == "gone":
            raise Problem(409, f"episode {body.id} is forgotten", field=f"{field}.id")
        if standing[body.key, body.id] == "known" and known - await deps.ask(
            deps.store.episodes.call_ids, body.key, body.id
        ):
            text = f"episode {body.id} is there with other calls"
            raise Problem(409, text, field=f"{field}.id", fix="import into a fresh store")
    return [body for body in bodies if standing[body.key, body.id] == "new"]


def change_of(body: EpisodeIn) -> JsonObject:
    # as text: a transcript may hold numbers and letters that the spool's own JSON has no way to write
    text = json_of(body).decode()
    days = sorted({schema.day_of(call.at) for call in body.call_list})
    return {"key": body.key, "episode": body.id, "days": days, "text": text}


ROUTES = Routes()


@ROUTES.add("POST", "/import/episode", (ADMIN,), body=EpisodeIn, result=Imported, errors=(409,))
async def post_episode(ctx: Ctx) -> web.StreamResponse:
    """Restore an exported episode. A repeat changes nothing."""
    body: EpisodeIn = ctx.body
    if not await check(ctx, [body], ["body"]):
        return reply(Imported(episode=body.id, calls=0))
    await ctx.deps.mutate("episode", change_of(body))
    return reply(Imported(episode=body.id, calls=len(body.call_list)))


@ROUTES.add("POST", "/import/episodes", (ADMIN,), body=EpisodesIn, result=ImportedMany, errors=(409,))
async def post_episodes(ctx: Ctx) -> web.StreamResponse:
    """Restore up to 256 exported episodes at once, all or none. A repeat changes nothing.

    All of them are checked before the first is kept; the last one's commit is waited for, which comes after the
    others'.
    """
    body: EpisodesIn = ctx.body
    if len({(e.key, e.id) for e in body.episodes}) != len(body.episodes):
        raise Problem(409, "the list has an episode twice", field="body.episodes", fix="send each once")
    new = await check(ctx, body.episodes, [f"body.episodes.{n}" for n in range(len(body.episodes))])
    mutate = ctx.deps.mutate
    await asyncio.gather(*(mutate("episode", change_of(e), wait=10.0 if e is new[-1] else 0) for e in new))
    fresh = {(e.key, e.id) for e in new}
    found = [Imported(episode=e.id, calls=len(e.call_list) if (e.key, e.id) in fresh else 0) for e in body.episodes]
    return reply(ImportedMany(episodes=found))


@ROUTES.add("POST", "/import/adapters", (ADMIN,), body=c.AdapterList, result=BroughtIn, errors=(409,))
async def post_adapters(ctx: Ctx) -> web.StreamResponse:
    """Import the adapters of another store, as GET adapters returns them. A repeat changes nothing.

    States are taken as they are: the live one is loaded before any call is sent to it. Those that are here already
    stay as they are.
    """
    models = ctx.deps.registry.models
    body: c.AdapterList = ctx.body
    strange = [a.name for a in body.adapters if a.model not in models or a.name != f"{a.model}@{a.version}"]
    if strange:
        text = f"{strange[0]} is no adapter of a trained model"
        raise Problem(409, text, field="body.adapters", fix=f"trained models: {', '.join(models)}")
    return reply(BroughtIn(adapters=await ctx.deps.registrar.bring_in(body.adapters)))
