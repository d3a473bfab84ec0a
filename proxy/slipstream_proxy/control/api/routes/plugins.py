"""Plug-ins: which are there, what failed in them, and their views."""

from __future__ import annotations

from typing import TypeVar

from aiohttp import web

from slipstream.contract import API_PREFIX, KeyScope
from slipstream.contract.plugins import PluginList, PluginView
from slipstream_proxy.control.api.http import EVERY_SCOPE, Ctx, Routes, reply
from slipstream_proxy.control.api.plugins import ControlPlugin, ControlPlugins
from slipstream_proxy.control.shared.problem import Problem

API_ROUTES = Routes()
PLUGINS_KEY: web.AppKey[ControlPlugins] = web.AppKey("plugins", ControlPlugins)
P = TypeVar("P", bound=ControlPlugin)


def plugin_of(ctx: Ctx, kind: type[P]) -> P:
    """The object that a plug-in's handler belongs to."""
    return ctx.request.app[PLUGINS_KEY].of(kind)


@API_ROUTES.add("GET", "/plugins", EVERY_SCOPE, result=PluginList, at_once=True)
async def get_plugins(ctx: Ctx) -> web.StreamResponse:
    """The plug-ins of this proxy, and what failed in them."""
    return reply(PluginList(plugins=ctx.deps.plugins.all()))


@API_ROUTES.add("GET", "/plugins/{name}/views/{view}", (KeyScope.VIEWER,), result=PluginView)
async def get_view(ctx: Ctx) -> web.StreamResponse:
    """What a view of a plug-in shows."""
    name, view = ctx.path("name"), ctx.path("view")
    part = ctx.request.app[PLUGINS_KEY].parts.get(name)
    if part is None or view not in part.views:
        raise Problem(404, "no such view", field="path.view", fix=f"see GET {API_PREFIX}/plugins")
    try:
        return reply(await part.view(view))
    except Problem:
        raise
    except Exception as e:
        ctx.deps.plugins.failed(name, e)
        text = f"the plug-in {name} failed: {type(e).__name__}"
        raise Problem(500, text, fix="see `slipstream status` and the proxy's log") from e
