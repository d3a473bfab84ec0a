"""The routes of labels and comments."""

from __future__ import annotations

from typing import Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.contract import SCORER_SCOPES, KeyScope
from slipstream_labelling.contract import CommentIn, Comments, LabelCases
from slipstream_labelling.server.queue import LabelQueue
from slipstream_proxy.control.api.http import (
    Ctx,
    Query,
    Routes,
    reply,
)
from slipstream_proxy.control.api.routes.episodes import (
    EPISODE_PATH,
    KeyId,
    KeyQuery,
    Label,
    episode_of,
    unknown,
)
from slipstream_proxy.control.api.routes.rewards import away_is_fine, owner_of
from slipstream_proxy.control.shared.problem import Problem

LABEL_ROUTES = Routes()


class QueueQuery(Query):
    key: KeyId | None = Field(None, description="Another key's episodes (admin, viewer).")
    task: c.Asked | None = None
    split: Literal["train", "eval"] | None = None
    adapter: Label | None = None
    limit: int = Field(20, ge=1, le=200)
    assigned: Label | None = Field(None, description="Episodes that this person is to label.")
    second: bool = Field(False, description="Episodes that others labelled, and this key did not.")


@LABEL_ROUTES.add("GET", "/labels/queue", query=QueueQuery, result=LabelCases)
async def get_queue(ctx: Ctx) -> web.StreamResponse:
    """Finished episodes to label, the most uncertain first; label one with a reward of source `human`."""
    q: QueueQuery = ctx.query
    queue = LabelQueue(ctx.deps.store)
    second = (ctx.caller.key or "-") if q.second else None
    return reply(
        await ctx.deps.ask(queue.read, ctx.visible(q.key), q.task, q.split, q.adapter, q.limit, second, q.assigned)
    )


@LABEL_ROUTES.add("GET", EPISODE_PATH + "/comments", query=KeyQuery, result=Comments)
async def get_comments(ctx: Ctx) -> web.StreamResponse:
    """What people said of an episode, and who is to label it."""
    return reply(await ctx.deps.ask(LabelQueue(ctx.deps.store).comments, *await _commented(ctx)))


@LABEL_ROUTES.add(
    "POST",
    EPISODE_PATH + "/comments",
    (KeyScope.GRADE, KeyScope.ADMIN),
    KeyQuery,
    CommentIn,
    result=Comments,
    errors=(404, 409),
)
async def post_comment(ctx: Ctx) -> web.StreamResponse:
    """Say something of an episode, or assign it to a person who is to label it. It is no reward and ends nothing."""
    deps = ctx.deps
    body: CommentIn = ctx.body
    if body.text is None and body.to is None:
        raise Problem(409, "neither text nor to is given", field="body.text", fix="give one of them, or both")
    key, episode = await _commented(ctx)
    if not await deps.ask(deps.store.episodes.known, key, [episode]):
        raise unknown(ctx)
    detail = {"key": key, **body.model_dump(exclude_none=True)}
    await deps.audit.put(ctx.caller.key, "comment" if body.to is None else "assign", episode, detail, write=ctx.write)
    found = Comments(comments=[])
    with away_is_fine():
        found = await deps.ask(LabelQueue(deps.store).comments, key, episode)
    return reply(found)


async def _commented(ctx: Ctx) -> tuple[str, str]:
    """The episode that is meant: its key and its id."""
    named, episode, caller = ctx.query.key, episode_of(ctx), ctx.caller
    if named is None and caller.sees_all:
        owners = await ctx.deps.ask(ctx.deps.store.episodes.owners, episode)
        named = owners[0] if len(owners) == 1 else None
    if named is None or not (caller.sees_all or caller.may(SCORER_SCOPES)):
        named = await owner_of(ctx, episode)
    return named, episode
