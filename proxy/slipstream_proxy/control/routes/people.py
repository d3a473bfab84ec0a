"""What people do by hand: label cases, pause training, write notes on the time axis, and see who did what."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream_proxy.control.http import ADMIN, GRADE, TRAINER, VIEWER, Ctx, Query, Route, reply
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
    task: c.Tag | None = None
    split: Literal["train", "eval"] | None = None
    adapter: str | None = Field(None, min_length=1, max_length=200, pattern=r"^[^\x00]+$")
    limit: int = Field(20, ge=1, le=200)


class AnnotationsQuery(Query):
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    limit: int = Field(500, ge=1, le=5000)


async def get_audit(ctx: Ctx) -> web.StreamResponse:
    q: AuditQuery = ctx.query
    try:
        return reply(await ctx.deps.ask(ctx.deps.store.audit.page, AuditFilter(**q.model_dump())))
    except ValueError as e:
        raise no_such_page(e) from e


async def get_queue(ctx: Ctx) -> web.StreamResponse:
    q: QueueQuery = ctx.query
    key = q.key if ctx.caller.sees_all else ctx.owner(q.key)
    queue = ctx.deps.store.reports.labels
    return reply(await ctx.deps.ask(queue.read, key, q.task, q.split, q.adapter, q.limit))


async def pause(ctx: Ctx) -> web.StreamResponse:
    return reply(await _switch(ctx, paused=True))


async def resume(ctx: Ctx) -> web.StreamResponse:
    return reply(await _switch(ctx, paused=False))


async def _switch(ctx: Ctx, *, paused: bool) -> c.Paused:
    return await ctx.deps.switch.set(ctx.deps, paused=paused, by=_who(ctx), reason=ctx.body.reason)


def _who(ctx: Ctx) -> str:
    """The name of the caller's key, or its id."""
    return ctx.deps.audit.name_of(ctx.caller.key) or ctx.caller.key


async def get_paused(ctx: Ctx) -> web.StreamResponse:
    return reply(await ctx.deps.switch.state(ctx.deps))


async def annotate(ctx: Ctx) -> web.StreamResponse:
    deps = ctx.deps
    body: c.AnnotationIn = ctx.body
    at = deps.now() if body.at is None else body.at
    event = c.Event(kind="annotation", at=at, data={"text": body.text, "by": _who(ctx)})
    await deps.mutate("event", event.model_dump(mode="json"))
    return await get_annotations_of(ctx, AnnotationsQuery(since=event.at, limit=1))


async def get_annotations(ctx: Ctx) -> web.StreamResponse:
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


ROUTES = [
    Route(
        "GET",
        c.API + "/audit",
        get_audit,
        "Who promoted, rolled back, labelled, deleted, paused or made keys, the newest first",
        (VIEWER, ADMIN),
        AuditQuery,
        responses={200: c.AuditPage},
        errors=(404,),
    ),
    Route(
        "GET",
        c.API + "/labels/queue",
        get_queue,
        "Finished episodes to label, the most uncertain first; label one with a reward of source `human`",
        query=QueueQuery,
        responses={200: c.LabelCases},
    ),
    Route(
        "GET",
        c.API + "/training/paused",
        get_paused,
        "Whether training is paused",
        responses={200: c.Paused},
    ),
    Route(
        "POST",
        c.API + "/training/pause",
        pause,
        "Hand out no batches until training is resumed; what is leased goes on",
        (TRAINER, ADMIN),
        body=c.PauseIn,
        body_required=False,
        responses={200: c.Paused},
        audit="pause",
    ),
    Route(
        "POST",
        c.API + "/training/resume",
        resume,
        "Hand out batches again",
        (TRAINER, ADMIN),
        body=c.PauseIn,
        body_required=False,
        responses={200: c.Paused},
        audit="resume",
    ),
    Route(
        "GET",
        c.API + "/annotations",
        get_annotations,
        "Notes, pauses and changes of adapters, oldest first: marks for a time axis",
        query=AnnotationsQuery,
        responses={200: c.Annotations},
    ),
    Route(
        "POST",
        c.API + "/annotations",
        annotate,
        "Write a note on the time axis",
        (TRAINER, GRADE, ADMIN),
        body=c.AnnotationIn,
        responses={200: c.Annotations},
        audit="annotate",
    ),
]
