"""What people do by hand: label cases, pause training, write notes on the time axis, and see who did what."""

from __future__ import annotations

from functools import partial
from typing import Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream_proxy.control.http import ADMIN, GRADE, TRAINER, VIEWER, Ctx, Query, Routes, paged, reply
from slipstream_proxy.control.routes.episodes import Cursor, KeyId, Label, Number
from slipstream_proxy.store.audit import AuditFilter

SHOWN_KINDS = ("annotation", "pause", "resume", "promote", "rollback", "adapter", "refused", "live", "accept")


class AuditQuery(Query):
    key: KeyId | None = Field(None, description="Done with this API key.")
    action: c.Tag | None = None
    target: Label | None = None
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    cursor: Cursor | None = Field(None, description="`next` of the page before.")
    limit: int = Field(100, ge=1, le=1000)


class QueueQuery(Query):
    key: KeyId | None = Field(None, description="Another key's episodes (admin, viewer).")
    task: c.Asked | None = None
    split: Literal["train", "eval"] | None = None
    adapter: Label | None = None
    limit: int = Field(20, ge=1, le=200)


class AnnotationsQuery(Query):
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    limit: int = Field(500, ge=1, le=5000)


ROUTES = Routes()


@ROUTES.add("GET", "/audit", (VIEWER, ADMIN), AuditQuery, result=c.AuditPage, errors=(404,))
async def get_audit(ctx: Ctx) -> web.StreamResponse:
    """Who promoted, rolled back, labelled, deleted, paused or made keys, the newest first."""
    return await paged(ctx, ctx.deps.store.audit.page, AuditFilter(**ctx.query.model_dump()))


@ROUTES.add("GET", "/labels/queue", query=QueueQuery, result=c.LabelCases)
async def get_queue(ctx: Ctx) -> web.StreamResponse:
    """Finished episodes to label, the most uncertain first; label one with a reward of source `human`."""
    q: QueueQuery = ctx.query
    queue = ctx.deps.store.reports.labels
    return reply(await ctx.deps.ask(queue.read, ctx.visible(q.key), q.task, q.split, q.adapter, q.limit))


switch = partial(ROUTES.add, "POST", scopes=(TRAINER, ADMIN), body=c.PauseIn, body_required=False, result=c.Paused)


@switch("/training/pause", audit="pause")
async def pause(ctx: Ctx) -> web.StreamResponse:
    """Hand out no batches until training is resumed; what is leased goes on."""
    return reply(await _switch(ctx, paused=True))


@switch("/training/resume", audit="resume")
async def resume(ctx: Ctx) -> web.StreamResponse:
    """Hand out batches again."""
    return reply(await _switch(ctx, paused=False))


async def _switch(ctx: Ctx, *, paused: bool) -> c.Paused:
    return await ctx.deps.switch.set(ctx.deps, paused=paused, by=_who(ctx), reason=ctx.body.reason)


def _who(ctx: Ctx) -> str:
    """The name of the caller's key, or its id."""
    return ctx.deps.audit.name_of(ctx.caller.key) or ctx.caller.key


@ROUTES.add("GET", "/training/paused", result=c.Paused)
async def get_paused(ctx: Ctx) -> web.StreamResponse:
    """Whether training is paused."""
    return reply(await ctx.deps.switch.state(ctx.deps))


@ROUTES.add(
    "POST", "/annotations", (TRAINER, GRADE, ADMIN), body=c.AnnotationIn, result=c.Annotations, audit="annotate"
)
async def annotate(ctx: Ctx) -> web.StreamResponse:
    """Write a note on the time axis."""
    deps = ctx.deps
    body: c.AnnotationIn = ctx.body
    at = deps.now() if body.at is None else body.at
    event = c.Event(kind="annotation", at=at, data={"text": body.text, "by": _who(ctx)})
    await deps.mutate("event", event.model_dump(mode="json"))
    return reply(await _annotations(ctx, AnnotationsQuery(since=event.at, limit=1)))


@ROUTES.add("GET", "/annotations", query=AnnotationsQuery, result=c.Annotations)
async def get_annotations(ctx: Ctx) -> web.StreamResponse:
    """Notes, pauses and changes of adapters, oldest first: marks for a time axis."""
    return reply(await _annotations(ctx, ctx.query))


async def _annotations(ctx: Ctx, q: AnnotationsQuery) -> c.Annotations:
    events = await ctx.deps.ask(ctx.deps.store.events.within, SHOWN_KINDS, q.since, q.until, q.limit)
    return c.Annotations(annotations=[_annotation(e) for e in events])


def _annotation(event: c.Event) -> c.Annotation:
    words = [str(event.data[name]) for name in ("text", "adapter", "name", "reason") if event.data.get(name)]
    by = event.data.get("by")
    text = {"text": ": ".join(words), "by": None if by is None else str(by)}
    return c.Annotation.model_validate(event.model_dump(include={"id", "at", "kind"}) | text)
