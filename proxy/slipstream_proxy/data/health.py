"""``/healthz`` (the worker lives), ``/readyz`` (it can answer calls) and ``/metrics``; answered here, whatever else is down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from slipstream_proxy.data.control_forward import check_host
from slipstream_proxy.data.metrics import gather

if TYPE_CHECKING:
    from slipstream_proxy.data.plane import Plane


async def answer_health(plane: Plane, request: web.BaseRequest, path: str) -> web.Response | None:
    """None: not such a path."""
    if path not in ("/healthz", "/readyz", "/metrics") or request.method not in ("GET", "HEAD"):
        return None
    if path == "/healthz":
        return web.json_response({"status": "ok"})
    if path == "/readyz":
        why = not_ready(plane)
        return web.json_response({"status": why or "ready"}, status=503 if why else 200)
    check_host(plane, request)
    own = gather(plane.config.root / "metrics", plane.metrics, f"data{plane.number}.json")
    return web.Response(
        text=_merged(own, await _control_metrics(plane)),
        headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
    )


def not_ready(plane: Plane) -> str | None:
    if plane.draining:
        return "draining"
    if not plane.live.known:
        return "what is live is not known yet"
    if not plane.live.ready:
        return "no engine is up"
    return None


async def _control_metrics(plane: Plane) -> str:
    try:
        async with asyncio.timeout(2.0):
            async with plane.link.session.get("http://control/internal/metrics") as reply:
                return (await reply.read()).decode("utf-8", "replace") if reply.status == 200 else ""
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ""


def _merged(own: str, other: str) -> str:
    """The control plane's families behind ours, without those that we have."""
    ours = {line.split(" ", 3)[2] for line in own.split("\n") if line.startswith("# TYPE ")}
    kept: list[str] = []
    skip = False
    for line in other.split("\n"):  # and not where splitlines does: labels hold what strangers wrote
        if line.startswith("# "):
            parts = line.split(" ", 3)
            if len(parts) > 2 and parts[1] in ("HELP", "TYPE"):
                skip = parts[2] in ours
        if not skip and line:
            kept.append(line)
    return own + ("\n".join(kept) + "\n" if kept else "")
