"""Looking: events, status, SQL."""

from __future__ import annotations

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.backoff import rest
from slipstream_proxy.control.http import ADMIN, ENDLESS, JUDGE, TRAINER, Ctx, Query, Routes, json_of, reply
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.routes.episodes import Stored
from slipstream_proxy.control.status import status_of
from slipstream_proxy.store.schema import VIEW_NAMES

NDJSON = "application/x-ndjson"
PAGE = 1000
FOLLOW_POLL = 1.0
SHOWN_WITHIN = 1.0
"""Seconds that an event's reply waits for the store. The spool has it by then; a busy store shows it later."""


class Success(c.Model):
    """Mean training reward by adapter, split and arm."""

    class ArmReward(c.Model):
        model: str | None
        adapter: str
        split: str
        arm: str
        episodes: int
        mean: float
        std: float
        first: float | None = None
        last: float | None = None

    rows: list[ArmReward]


class EventsQuery(Query):
    after: int = Field(0, ge=0, le=2**53, description="The id of the last event that is known already.")
    follow: bool = Field(
        False,
        description="Stay on: a line for each new event, an empty one every few seconds.",
        json_schema_extra=ENDLESS,
    )


ROUTES = Routes()


@ROUTES.add("GET", "/training/events", query=EventsQuery, result=NDJSON)
async def get_events(ctx: Ctx) -> web.StreamResponse:
    """Events as NDJSON, from the start; `follow=true` stays on for new ones."""
    deps, q = ctx.deps, ctx.query
    after = q.after
    events = await deps.ask(deps.store.events.page, after, PAGE)
    response = web.StreamResponse(headers={"content-type": NDJSON, "cache-control": "no-store"})
    await response.prepare(ctx.request)
    idle = 0.0
    while True:
        changed = deps.changed
        for e in events:
            after = max(after, e.id)
        if events:
            await response.write(b"".join(json_of(e) + b"\n" for e in events))
        elif not q.follow:
            break
        elif idle >= 5.0:
            await response.write(b"\n")
            idle = 0.0
        if not events:
            await rest(FOLLOW_POLL, changed)
            idle += FOLLOW_POLL
        events = await deps.ask(deps.store.events.page, after, PAGE)
    await response.write_eof()
    return response


@ROUTES.add("POST", "/training/events", (TRAINER, JUDGE), body=c.Event, result=Stored)
async def post_event(ctx: Ctx) -> web.StreamResponse:
    """Add an event.

    The number is the store's to give: an ``id`` in the body counts for nothing.
    """
    deps = ctx.deps
    body: c.Event = ctx.body
    event = body.model_copy(update={"id": 0, "at": body.at or deps.now()})
    await deps.mutate("event", event.model_dump(mode="json"), wait=SHOWN_WITHIN)
    deps.metrics.event(event)
    return reply(Stored())


@ROUTES.add("GET", "/status", result=c.Status)
async def get_status(ctx: Ctx) -> web.StreamResponse:
    """The state of everything, and why there is no training step yet."""
    status = await status_of(ctx.deps)
    return reply(status.model_copy(update={"scopes": sorted(ctx.caller.scopes)}))


@ROUTES.add("POST", "/sql", (ADMIN,), body=c.Sql, result=c.SqlResult, errors=(408, 409))
async def post_sql(ctx: Ctx) -> web.StreamResponse:
    """One SELECT over the documented views."""
    deps = ctx.deps
    body: c.Sql = ctx.body
    try:
        result = await deps.ask(deps.store.sql, body.query, body.limit, deps.config.store.sql_timeout)
    except TimeoutError as e:
        text = f"the query took longer than store.sql_timeout: {e}"
        raise Problem(408, text, field="body.query", fix="ask for less") from e
    except Problem:
        raise
    except Exception as e:
        # the body is as it should be; what it asks for does not go with what is there
        fix = f"one SELECT over the views {', '.join(VIEW_NAMES)}"
        raise Problem(409, str(e)[:2000], type="query_failed", field="body.query", fix=fix) from e
    return reply(result)


@ROUTES.add("GET", "/success", result=Success)
async def get_success(ctx: Ctx) -> web.StreamResponse:
    """Mean reward by adapter, split and arm."""
    rows = await ctx.deps.ask(ctx.deps.store.statistics.success_by_adapter)
    return reply(Success(rows=[Success.ArmReward.model_validate(r) for r in rows]))
