"""Looking: events, status, SQL, what was learned by adapter or time, and the live feed: server-sent events that name
what has changed, so that a page reads it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream.shared.backoff import rest
from slipstream_proxy.control.api.http import ENDLESS_MARK, Ctx, Query, Routes, json_of, reply
from slipstream_proxy.control.api.routes.episodes import KeyId, Label, Number, Stored, pair_of
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.status.status import status_of
from slipstream_proxy.control.storage.feed import Feed
from slipstream_proxy.store.read.curves import LearningFilter
from slipstream_proxy.store.tables.schema import VIEW_NAMES

NDJSON_TYPE = "application/x-ndjson"
EVENTS_PER_PAGE = 1000
FOLLOW_POLL = 1.0
MAX_STEP_S = 7 * 86_400
"""Seconds of a step beyond which its event is refused."""
QUOTING_CAUSES = ("failing", "parked", "skipped")
"""Causes whose text holds what an engine or a judge said, or a batch."""
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
        json_schema_extra=ENDLESS_MARK,
    )


API_ROUTES = Routes()


@API_ROUTES.add("GET", "/training/events", query=EventsQuery, result=NDJSON_TYPE)
async def get_events(ctx: Ctx) -> web.StreamResponse:
    """Events as NDJSON, from the start; `follow=true` stays on for new ones."""
    deps, q = ctx.deps, ctx.query
    events = await deps.ask(deps.store.events.page, q.after, EVENTS_PER_PAGE)
    response = web.StreamResponse(headers={"content-type": NDJSON_TYPE, "cache-control": "no-store"})
    await response.prepare(ctx.request)
    if not q.follow:
        await _write_events(ctx, response, events)
    else:
        with ctx.reads_on(), contextlib.suppress(ConnectionError):
            await _write_events(ctx, response, events)
    await response.write_eof()
    return response


async def _write_events(ctx: Ctx, response: web.StreamResponse, events: Sequence[c.Event]) -> None:
    """``events``, and those behind them; with ``follow`` for ever."""
    deps, after, idle = ctx.deps, ctx.query.after, 0.0
    while True:
        changed = deps.changed
        for e in events:
            after = max(after, e.id)
        if events:
            await response.write(b"".join(json_of(e) + b"\n" for e in events))
        elif not ctx.query.follow:
            return
        elif idle >= 5.0:
            await response.write(b"\n")
            idle = 0.0
        if not events:
            await rest(FOLLOW_POLL, changed)
            idle += FOLLOW_POLL
        events = await deps.ask(deps.store.events.page, after, EVENTS_PER_PAGE)


@API_ROUTES.add(
    "POST", "/training/events", (KeyScope.TRAINER, KeyScope.JUDGE), body=c.Event, result=Stored, at_once=True
)
async def post_event(ctx: Ctx) -> web.StreamResponse:
    """Add an event.

    The number is the store's to give: an ``id`` in the body counts for nothing.
    """
    deps = ctx.deps
    body: c.Event = ctx.body
    took = body.data.get("seconds", 0)
    if isinstance(took, bool) or not isinstance(took, int | float) or not 0 <= took <= MAX_STEP_S:
        text = f"seconds must be a number from 0 to {MAX_STEP_S}: trainer.schedule.minutes counts them"
        raise Problem(422, text, field="body.data.seconds", fix="send how long the step took")
    event = body.model_copy(update={"id": 0, "at": body.at or deps.now()})
    await deps.mutate("event", event.model_dump(mode="json"), wait=SHOWN_WITHIN)
    deps.metrics.event(event)
    return reply(Stored())


@API_ROUTES.add("GET", "/status", result=c.Status, at_once=True)
async def get_status(ctx: Ctx) -> web.StreamResponse:
    """The state of everything, and why there is no training step yet."""
    with contextlib.suppress(TimeoutError):  # it is what people look at while the store takes nothing
        await asyncio.wait_for(asyncio.shield(ctx.deps.mutations.settled()), 0.5)
    status = await status_of(ctx.deps)
    if not ctx.caller.may((KeyScope.VIEWER,)):
        status = _without_texts(status)
    return reply(status.model_copy(update={"scopes": sorted(ctx.caller.scopes)}))


def _without_texts(status: c.Status) -> c.Status:
    """For a key that does not see everybody's runs: engines and judges quote prompts in their errors."""
    lines = [
        line.model_copy(update={"text": line.text.partition(":")[0] + " (a key with the scope viewer sees why)"})
        if line.cause in QUOTING_CAUSES or line.stage == "lost"
        else line
        for line in status.funnel.lines
    ]
    update = {"funnel": c.Funnel(lines=lines), "waiting": [line.sentence for line in lines]}
    return status.model_copy(update=update)


@API_ROUTES.add("POST", "/sql", (KeyScope.ADMIN,), body=c.Sql, result=c.SqlResult, errors=(408, 409))
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


@API_ROUTES.add("GET", "/success", result=Success)
async def get_success(ctx: Ctx) -> web.StreamResponse:
    """Mean reward by adapter, split and arm."""
    rows = await ctx.deps.ask(ctx.deps.store.statistics.success_by_adapter)
    return reply(Success(rows=[Success.ArmReward.model_validate(r) for r in rows]))


class RunsQuery(Query):
    """Which runs are counted."""

    key: KeyId | None = Field(None, description="Another key's (admin, viewer).")
    model: Label | None = None
    task: c.Asked | None = None
    split: Literal["train", "eval"] | None = None
    tag: str | None = Field(None, pattern=r"^[^:]+:[\s\S]", max_length=c.IN_A_URL, description="`name:value`.")
    since: Number | None = Field(None, description="Started at or after, seconds since the epoch.")
    until: Number | None = Field(None, description="Started before.")

    def wanted(self, ctx: Ctx) -> LearningFilter:
        name, value = pair_of(self.tag)
        given = self.model_dump(exclude={"tag", "key"})
        return LearningFilter(**given, key=ctx.visible(self.key), tag=(name, value) if name else None)


class LearningQuery(RunsQuery):
    by: Literal["adapter", "time"] = Field("adapter", description="A point for each adapter, or for each span of time.")
    each: str | None = Field(
        None,
        pattern=r"^(task|split|arm|role|tag\.[A-Za-z0-9._-]{1,128})$",
        description="A series for each `task`, `split`, `arm`, `role` (live, control, held-out, no adapter) or value "
        "of a tag (`tag.<name>`).",
    )
    arm: Literal["live", "control", "best", "candidate"] | None = None
    bucket: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="Seconds of a span of time; left out: by the time there is."
    )
    success_from: Number = Field(0.5, description="A reward of this or more is a success.")


@API_ROUTES.add("GET", "/learning", query=LearningQuery, result=c.Learning)
async def get_learning(ctx: Ctx) -> web.StreamResponse:
    """Reward and success by adapter or time, with standard errors; a series for each task, split, arm, role or tag."""
    return reply(await ctx.deps.ask(ctx.deps.store.reports.learning.read, ctx.query.wanted(ctx)))


class CostQuery(RunsQuery):
    each: str = Field(
        "adapter",
        pattern=r"^(adapter|model|task|split|arm|role|tag\.[A-Za-z0-9._-]{1,128})$",
        description="A line for each `adapter`, `model`, `task`, `split`, `arm`, `role` or value of a tag "
        "(`tag.<name>`).",
    )


@API_ROUTES.add("GET", "/cost", query=CostQuery, result=c.CostTable)
async def get_cost(ctx: Ctx) -> web.StreamResponse:
    """What runs took: tokens, seconds of engines and of the trainer, the judge's dollars; by version, task or tag."""
    engines = max(1, len(ctx.deps.engines.engines))
    return reply(await ctx.deps.ask(ctx.deps.store.reports.costs.read, ctx.query.wanted(ctx), engines))


class TasksQuery(Query):
    key: KeyId | None = Field(None, description="Another key's (admin, viewer).")
    split: Literal["train", "eval"] | None = None
    model: Label | None = None


@API_ROUTES.add("GET", "/tasks", query=TasksQuery, result=c.TaskTable)
async def get_tasks(ctx: Ctx) -> web.StreamResponse:
    """Each task's runs with the base model and now, the difference with its interval, and its worst runs."""
    q: TasksQuery = ctx.query
    read = ctx.deps.store.reports.tasks.read
    return reply(await ctx.deps.ask(read, key=ctx.visible(q.key), split=q.split, model=q.model))


EVENT_STREAM = "text/event-stream"
MOST_READERS, KEPT_FOR_PEOPLE = 256, 64
"""Readers of the events; and of these places, those for keys that see all."""
STALLED_READER_TIMEOUT_S = 10.0
"""Seconds that a reader may take nothing before its connection ends."""


@API_ROUTES.add("GET", "/events/stream", query=Query, result=EVENT_STREAM, endless=True)
async def get_stream(ctx: Ctx) -> web.StreamResponse:
    """Server-sent events, endless: call, episode, reward, group, adapter, step, status; their data are ids.
    `Last-Event-ID` goes on after that event; `reset` says that this is not possible: read all again.
    """
    feed = ctx.deps.feed
    if ctx.caller.sees_all:
        return await _streamed(ctx, feed)
    async with ctx.deps.shares.stream(ctx.caller.key):
        return await _streamed(ctx, feed)


async def _streamed(ctx: Ctx, feed: Feed) -> web.StreamResponse:
    most = MOST_READERS if ctx.caller.sees_all else MOST_READERS - KEPT_FOR_PEOPLE
    if feed.readers >= most:
        why = f"{feed.readers} readers follow the events already"
        raise Problem(503, why, fix="close a page, or poll", headers={"retry-after": "30"})
    headers = {"content-type": EVENT_STREAM, "cache-control": "no-store", "x-accel-buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(ctx.request)
    key = None if ctx.caller.sees_all else ctx.caller.key
    feed.readers += 1
    try:
        with ctx.reads_on(), contextlib.suppress(ConnectionError):
            async with contextlib.aclosing(feed.lines(ctx.request.headers.get("last-event-id"), key)) as lines:
                async for text in lines:
                    await asyncio.wait_for(response.write(text), STALLED_READER_TIMEOUT_S)
    except TimeoutError:
        if ctx.request.transport is not None:
            ctx.request.transport.abort()  # what it has not taken is not kept for it
    finally:
        feed.readers -= 1
    return response
