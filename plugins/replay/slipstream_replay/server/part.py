"""The plug-in's part in the control plane."""

from __future__ import annotations

from aiohttp import web

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream_proxy.control.api.http import Ctx, Routes, reply
from slipstream_proxy.control.api.routes.plugins import plugin_of
from slipstream_proxy.control.deps import Deps
from slipstream_replay.server.case_keeper import KeepsCases
from slipstream_replay.server.case_routes import CASE_ROUTES
from slipstream_replay.server.gate import ReplayGate

REPLAY_ROUTES = Routes()


@REPLAY_ROUTES.add(
    "GET", "/adapters/{adapter}/replay", (KeyScope.ADMIN, KeyScope.VIEWER), result=c.ReplayShown, errors=(404, 409)
)
async def get_replay(ctx: Ctx) -> web.StreamResponse:
    """How a version did on recorded steps, with its worst cases side by side."""
    return reply(await plugin_of(ctx, ReplayPlugin).replays.worst(ctx.deps.rollout.registry.find(ctx.path("adapter"))))


class ReplayPlugin(KeepsCases):
    """Sets of cases, and the rehearsal of ``gate.mode = "replay"``."""

    routes = (*CASE_ROUTES, *REPLAY_ROUTES)

    def __init__(self, deps: Deps, settings: None) -> None:
        super().__init__(deps, settings)
        self.replays = ReplayGate(
            deps, self.cases, deps.rollout.registry, deps.rollout.lifecycle, deps.rollout.fleet, deps.engines
        )
        deps.rollout.rehearsals.current = self.replays

    async def start(self) -> None:
        self.replays.start()

    async def stop(self) -> None:
        await self.replays.stop()
