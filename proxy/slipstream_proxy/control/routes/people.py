"""What people do by hand: label cases, pause training, write notes on the time axis, and see who did what."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream_proxy.control.http import ADMIN, GRADE, TRAINER, VIEWER, Ctx, Query, Routes, reply
from slipstream_proxy.control.problem import no_such_page
from slipstream_proxy.control.routes.episodes import CURSOR, Number
from slipstream_proxy.store.audit import AuditFilter

KeyName = Annotated[str, Field(max_length=64, pattern="^[A-Za-z0-9_-]+$")]
SHOWN_KINDS = ("annotation", "pause", "resume", "promote", "rollback", "adapter", "refused", "live", "accept")


class AuditQuery(Query):
    key: KeyName | None = Field(None, description="Done with this API key.")
    action: c.Tag | None = None
    target: str | None = Field(None, min_length=1, max_length=200, pattern=r"^[^\x00]+$")
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    cursor: str | None = Field(
        None, min_length=1, max_length=1000, pattern=CURSOR, description="`next` of the page before."
    )
    limit: int = Field(100, ge=1, le=1000)


class QueueQuery(Query):
    key: KeyName | None = Field(None, description="Another key's episodes (admin, viewer).")
    task: c.Asked | None = None
    split: Literal["train", "eval"] | None = None
    adapter: str | None = Field(None, min_length=1, max_length=200, pattern=r"^[^\x00]+$")
    limit: int = Field(20, ge=1, le=200)


class AnnotationsQuery(Query):
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    limit: int = Field(500, ge=1, le=5000)


ROUTES = Routes()


@ROUTES.add("GET", "/audit", (VIEWER, ADMIN), AuditQuery, result=c.AuditPage, errors=(404,))
async def get_audit(ctx: Ctx) -> web.StreamResponse:
    """Who promoted, rolled back, labelled, deleted, paused or made keys, the newest first."""
    q: AuditQuery = ctx.query
    try:
        return reply(await ctx.deps.ask(ctx.deps.store.audit.page, AuditFilter(**q.model_dump())))
    except ValueError as e:
        raise no_such_page(e) from e


@ROUTES.add("GET", "/labels/queue", query=QueueQuery, result=c.LabelCases)
async def get_queue(ctx: Ctx) -> web.StreamResponse:
    """Finished episodes to label, the most uncertain first; label one with a reward of source `human`."""
    q: QueueQuery = ctx.query
    key = q.key if ctx.caller.sees_all else ctx.owner(q.key)
    queue = ctx.deps.store.reports.labels
    return reply(await ctx.deps.ask(queue.read, key, q.task, q.split, q.adapter, q.limit))


@ROUTES.add(
    "POST", "/training/pause", (TRAINER, ADMIN), body=c.PauseIn, body_required=False, result=c.Paused, audit="pause"
)
async def pause(ctx: Ctx) -> web.StreamResponse:
    """Hand out no batches until training is resumed; what is leased goes on."""
    return reply(await _switch(ctx, paused=True))


@ROUTES.add(
    "POST", "/training/resume", (TRAINER, ADMIN), body=c.PauseIn, body_required=False, result=c.Paused, audit="resume"
)
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
    return await get_annotations_of(ctx, AnnotationsQuery(since=event.at, limit=1))


@ROUTES.add("GET", "/annotations", query=AnnotationsQuery, result=c.Annotations)
async def get_annotations(ctx: Ctx) -> web.StreamResponse:
    """Notes, pauses and changes of adapters, oldest first: marks for a time axis."""
    return await get_annotations_of(ctx, ctx.query)


async def get_annotations_of(ctx: Ctx, q: AnnotationsQuery) -> web.StreamResponse:
    events = await ctx.deps.ask(ctx.deps.store.events.within, SHOWN_KINDS, q.since, q.until, q.limit)
    return reply(c.Annotations(annotations=[_annotation(e) for e in events]))


def _annotation(event: c.Event) -> c.Annotation:
    data = event.data
    words = [str(data[name]) for name in ("text", "adapter", "name", "reason") if data.get(name)]
    by = data.get("by")
    return c.Annotation.model_validate(
        {
            "id": event.id,
            "at": event.at,
            "kind": event.kind,
            "text": ": ".join(words),
            "by": None if by is None else str(by),
        }
    )
