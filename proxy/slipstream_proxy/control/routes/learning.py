"""What was learned: rewards by adapter or time, as series with standard errors."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field

from slipstream import contract as c
from slipstream_proxy.control.http import Ctx, Query, Routes, reply
from slipstream_proxy.control.routes.episodes import KeyId, Label, Number, pair_of
from slipstream_proxy.store.learning import LearningFilter


class LearningQuery(Query):
    by: Literal["adapter", "time"] = Field("adapter", description="A point for each adapter, or for each span of time.")
    each: str | None = Field(
        None,
        pattern=r"^(task|split|arm|tag\.[A-Za-z0-9._-]{1,128})$",
        description="A series for each `task`, `split`, `arm` or value of a tag (`tag.<name>`).",
    )
    key: KeyId | None = Field(None, description="Another key's (admin, viewer).")
    model: Label | None = None
    task: c.Asked | None = None
    split: Literal["train", "eval"] | None = None
    arm: Literal["live", "control", "best", "candidate"] | None = None
    tag: str | None = Field(None, pattern=r"^[^:]+:[\s\S]", max_length=c.IN_A_URL, description="`name:value`.")
    since: Number | None = Field(None, description="Started at or after, seconds since the epoch.")
    until: Number | None = Field(None, description="Started before.")
    bucket: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="Seconds of a span of time; left out: by the time there is."
    )
    success_from: Number = Field(0.5, description="A reward of this or more is a success.")


ROUTES = Routes()


@ROUTES.add("GET", "/learning", query=LearningQuery, result=c.Learning)
async def get_learning(ctx: Ctx) -> web.StreamResponse:
    """Reward and success by adapter or time, with standard errors; a series for each task, split, arm or tag."""
    q: LearningQuery = ctx.query
    name, value = pair_of(q.tag)
    wanted = LearningFilter(
        **q.model_dump(exclude={"tag", "key"}),
        key=ctx.visible(q.key),
        tag=(name, value) if name else None,
    )
    return reply(await ctx.deps.ask(ctx.deps.store.reports.learning.read, wanted))
