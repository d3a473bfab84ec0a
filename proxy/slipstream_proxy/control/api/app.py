"""The control plane's application: routes, errors in one shape, who may ask what."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from slipstream_proxy.control import page
from slipstream_proxy.control.api import openapi
from slipstream_proxy.control.api.http import Ctx, Route, caller_of, checked, problem_response
from slipstream_proxy.control.api.plugins import ControlPlugins, control_parts
from slipstream_proxy.control.api.routes import (
    adapter_files,
    adapters,
    audit,
    episodes,
    groups,
    internal,
    learner,
    notes,
    plugins,
    restore,
    rewards,
    status,
    tenants,
    training,
    uploads,
    work,
)
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.json_types import JsonObject

__all__ = ["ALL_ROUTES", "DEPS_KEY", "Deps", "installed_routes", "make_app"]

log = logging.getLogger(__name__)
DEPS_KEY: web.AppKey[Deps] = web.AppKey("deps", Deps)
ROUTE_MODULES = (
    episodes, rewards, restore, training, work, learner, groups, status, adapters, adapter_files,
    uploads, notes, audit, plugins, tenants,
)  # fmt: skip
ALL_ROUTES: list[Route] = [route for module in ROUTE_MODULES for route in module.API_ROUTES]
"""The core's own."""
BODY_LIMIT = 64 * 2**20
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def installed_routes() -> list[Route]:
    """The core's and those of all plug-ins that are installed."""
    return [*ALL_ROUTES, *(route for part in control_parts() for route in part.routes)]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "ip6-localhost"


def check_origin(deps: Deps, request: web.Request) -> None:
    """Without keys a browser on this machine could be made to ask for a stranger's page: a foreign Origin, or a Host
    that is not this machine's name (DNS rebinding), is refused.
    """
    try:
        host = urlsplit(f"//{request.headers.get('host', 'localhost')}").hostname or ""
        host = host.removesuffix(".")
        origin = request.headers.get("origin")
        if origin is not None and not _is_own(origin, deps.config.proxy.public_url, request):
            fix = "open the page on the proxy's own address; behind a reverse proxy keep Host, or set proxy.public_url"
            raise Problem(403, "requests from this origin are refused", field="header.origin", fix=fix)
    except ValueError as e:
        raise Problem(403, "host or origin cannot be read", field="header.host") from e
    if caller_of(request).key != "-":
        return
    if not (_is_loopback(host) or host in deps.config.proxy.own_names):
        text = f"no keys are configured and {host!r} is no name of this machine"
        raise Problem(403, text, field="header.host", fix="add it to proxy.allowed_hosts")


def _is_own(origin: str, public_url: str | None, request: web.Request) -> bool:
    """Whether a page of this origin is ours. A reverse proxy may have put another name into Host: then the browser says
    it, in a field that no page can set, or the configuration does.
    """
    asked = urlsplit(origin)
    if asked.netloc == request.headers.get("host") or request.headers.get("sec-fetch-site") == "same-origin":
        return True
    known = urlsplit(public_url or "")
    return bool(known.netloc) and (asked.scheme, asked.netloc) == (known.scheme, known.netloc)


def _allowed(request: web.Request) -> str:
    """Methods that exist for this path, for a 405."""
    path, resources = request.rel_url.raw_path, request.app.router.resources()
    found = (r for r in resources if isinstance(r, web.Resource) and r._match(path) is not None)
    return ", ".join(sorted({route.method for resource in found for route in resource}))


@web.middleware
async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error in the contract's shape; nothing of ours leaks in an internal one."""
    deps = request.app[DEPS_KEY]
    started = time.monotonic()
    problem: Problem | None = None
    response: web.StreamResponse
    try:
        if not request.path.startswith("/internal/"):
            check_origin(deps, request)
        response = await handler(request)
    except Problem as p:
        problem = p
    except web.HTTPMethodNotAllowed:
        allow = _allowed(request)
        problem = Problem(405, f"{request.method} is not known here", fix=f"use {allow}", headers={"allow": allow})
    except web.HTTPNotFound:
        problem = Problem(404, f"no such path: {request.path}", field="path", fix="see /slipstream/openapi.json")
    except web.HTTPRequestEntityTooLarge:
        problem = Problem(413, "the body is too large", field="body")
    except web.HTTPException as e:
        problem = Problem(e.status, e.reason)
    except (ConnectionResetError, TimeoutError) as e:
        problem = Problem(408, type(e).__name__)
    except Exception:
        resource = request.match_info.route.resource  # a path may be a text that somebody wrote
        log.exception("%s %s failed", request.method, resource.canonical if resource is not None else "?")
        problem = Problem(500, "an internal error; the proxy's log has the details")
    if problem is not None:
        response = problem_response(problem)
    deps.metrics.request(request, response.status, time.monotonic() - started)
    return response


REQUEST_LINE = 128 * 1024
"""Bytes of a request's first line: two texts of a query, each character of which takes up to twelve."""


def make_app(deps: Deps, parts: ControlPlugins) -> web.Application:
    """``parts``: the plug-ins of this process."""
    app = web.Application(middlewares=[shape], client_max_size=BODY_LIMIT)
    app[DEPS_KEY] = deps
    app[plugins.PLUGINS_KEY] = parts
    routes = [*ALL_ROUTES, *parts.routes]

    @functools.cache
    def description() -> JsonObject:
        # it takes 0.1 s to make, so a start does not wait for it
        return openapi.document(routes)

    async def spec(_: Ctx) -> web.StreamResponse:
        return web.json_response(await asyncio.to_thread(description))

    for route in (*routes, Route("GET", "/slipstream/openapi.json", spec, "This API, as OpenAPI")):
        app.router.add_route(route.method, route.path, functools.partial(checked, deps, route=route))
    app.on_shutdown.append(deps.endless.end)
    internal.add(app, deps)
    page.add(app)
    return app
