"""Notes on the charts' time axis."""

from __future__ import annotations

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream_proxy.control.adapters.gatekeeper import REWARDS_CHANGED
from slipstream_proxy.control.api.http import (
    Ctx,
    Query,
    Routes,
    reply,
)
from slipstream_proxy.control.api.routes.episodes import (
    Number,
)
from slipstream_proxy.control.api.routes.rewards import away_is_fine, who_asks

SHOWN_KINDS = (
    *("annotation", REWARDS_CHANGED, "pause", "resume", "promote", "rollback", "adapter", "refused", "live", "accept"),
)


API_ROUTES = Routes()


class AnnotationsQuery(Query):
    since: Number | None = Field(None, description="Seconds since the epoch.")
    until: Number | None = None
    limit: int = Field(500, ge=1, le=5000)


@API_ROUTES.add(
    "POST",
    "/annotations",
    (KeyScope.TRAINER, KeyScope.GRADE, KeyScope.ADMIN),
    body=c.AnnotationIn,
    result=c.Annotations,
    audit="annotate",
)
async def annotate(ctx: Ctx) -> web.StreamResponse:
    """Write a note on the time axis. With ``rewards_changed`` the gate's evidence begins anew."""
    deps = ctx.deps
    body: c.AnnotationIn = ctx.body
    at = deps.now() if body.at is None else body.at
    kind = REWARDS_CHANGED if body.rewards_changed else "annotation"
    event = c.Event(kind=kind, at=at, data={"text": body.text, "by": who_asks(ctx)})
    await deps.mutate("event", event.model_dump(mode="json"), id=ctx.write)
    if body.rewards_changed:
        deps.rollout.gatekeeper.notify()
    found = c.Annotations(annotations=[])
    with away_is_fine():
        found = await _annotations(ctx, AnnotationsQuery(since=event.at, limit=1))
    return reply(found)


@API_ROUTES.add("GET", "/annotations", query=AnnotationsQuery, result=c.Annotations)
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
