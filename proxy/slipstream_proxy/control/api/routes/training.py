"""Training is paused and resumed by hand."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream_proxy.control.api.http import (
    Ctx,
    Routes,
    reply,
)
from slipstream_proxy.control.api.routes.rewards import who_asks

API_ROUTES = Routes()
switch = partial(
    API_ROUTES.add,
    "POST",
    scopes=(KeyScope.TRAINER, KeyScope.ADMIN),
    body=c.PauseIn,
    body_required=False,
    result=c.Paused,
)


@switch("/training/pause", audit="pause")
async def pause(ctx: Ctx) -> web.StreamResponse:
    """Hand out no batches until training is resumed; what is leased goes on."""
    return reply(await _switch(ctx, paused=True))


@switch("/training/resume", audit="resume")
async def resume(ctx: Ctx) -> web.StreamResponse:
    """Hand out batches again."""
    return reply(await _switch(ctx, paused=False))


async def _switch(ctx: Ctx, *, paused: bool) -> c.Paused:
    return await ctx.deps.switch.set(ctx.deps, paused=paused, by=who_asks(ctx), reason=ctx.body.reason)


@API_ROUTES.add("GET", "/training/paused", result=c.Paused)
async def get_paused(ctx: Ctx) -> web.StreamResponse:
    """Whether training is paused."""
    return reply(await ctx.deps.switch.state(ctx.deps))
