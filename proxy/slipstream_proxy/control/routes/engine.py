"""The trainer's turn on the GPU that it shares with the engine."""

from __future__ import annotations

from aiohttp import web

from slipstream import contract as c
from slipstream_proxy.control.http import TRAINER, Ctx, Route, reply
from slipstream_proxy.control.problem import Problem


async def hold(ctx: Ctx) -> web.StreamResponse:
    deps = ctx.deps
    if not deps.config.engine.share:
        raise Problem(409, "engine and trainer do not share a GPU here", fix="set engine.share = true")
    return reply(await deps.lease.hold(ctx.body))


async def release(ctx: Ctx) -> web.StreamResponse:
    return reply(await ctx.deps.lease.release(ctx.body.worker))


ROUTES = [
    Route(
        "POST",
        c.API + "/engine/hold",
        hold,
        "Calls wait and the engine sleeps (engine.share), or go on doing so",
        (TRAINER,),
        body=c.HoldIn,
        responses={200: c.Hold},
        errors=(409,),
    ),
    Route(
        "POST",
        c.API + "/engine/release",
        release,
        "The engine wakes and the calls go on",
        (TRAINER,),
        body=c.EngineReleaseIn,
        responses={200: c.EngineReleased},
    ),
]
