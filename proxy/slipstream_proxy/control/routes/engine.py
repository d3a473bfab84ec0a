"""The trainer's turn on the GPU that it shares with the engine."""

from __future__ import annotations

from aiohttp import web

from slipstream import contract as c
from slipstream_proxy.control.http import TRAINER, Ctx, Routes, reply
from slipstream_proxy.control.problem import Problem

ROUTES = Routes()


@ROUTES.add("POST", "/engine/hold", (TRAINER,), body=c.HoldIn, result=c.Hold, errors=(409,))
async def hold(ctx: Ctx) -> web.StreamResponse:
    """Hold the engine: calls wait and it sleeps (engine.share). A repeat extends the hold."""
    deps = ctx.deps
    if not deps.config.engine.share:
        raise Problem(409, "engine and trainer do not share a GPU here", fix="set engine.share = true")
    return reply(await deps.lease.hold(ctx.body))


@ROUTES.add("POST", "/engine/release", (TRAINER,), body=c.EngineReleaseIn, result=c.EngineReleased)
async def release(ctx: Ctx) -> web.StreamResponse:
    """Release the engine: it wakes and the calls go on."""
    return reply(await ctx.deps.lease.release(ctx.body.worker))
