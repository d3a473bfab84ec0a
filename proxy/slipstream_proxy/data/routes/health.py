"""``/healthz`` (the worker lives), ``/readyz`` (it can answer calls), ``/metrics``: they need nothing else to be up."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from slipstream_proxy.data.observe.metrics import gather
from slipstream_proxy.data.wire.http1 import GUARD_HEADERS

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream_proxy.data.access.hosts import AllowedHosts
    from slipstream_proxy.data.engines.control_link import ControlLink
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.data.server.connection import ServerState


SCRAPE_PATIENCE = 2.0
"""Seconds that a scrape waits for the control plane."""
KEPT_ANSWER_S = 300.0
"""Seconds for which its last answer stands in for it."""


class HealthRoutes:
    """Answers for this worker, and ``/metrics`` for all of them."""

    def __init__(
        self,
        state: ServerState,
        live: LiveView,
        metrics: WorkerMetrics,
        file: Path,
        link: ControlLink,
        hosts: AllowedHosts,
    ) -> None:
        """``file`` is where this worker's metrics are saved; the others' lie beside it."""
        self._state, self._live, self._metrics, self._file = state, live, metrics, file
        self._link, self._hosts = link, hosts
        self._last = ""
        """What the control plane answered last, at ``_last_at`` (monotonic seconds)."""
        self._last_at = float("-inf")

    async def answer(self, request: web.BaseRequest, path: str) -> web.Response | None:
        """None: not such a path."""
        if path not in ("/healthz", "/readyz", "/metrics") or request.method not in ("GET", "HEAD"):
            return None
        if path == "/healthz":
            return web.json_response({"status": "ok"}, headers=GUARD_HEADERS)
        if path == "/readyz":
            why = self.not_ready()
            away = {} if self._live.connected else {"control_plane": "away: calls are served and recorded meanwhile"}
            ready = {"status": why or "ready", **away}
            return web.json_response(ready, status=503 if why else 200, headers=GUARD_HEADERS)
        self._hosts.check(request)
        own = gather(self._file.parent, self._metrics, self._file.name)
        return web.Response(
            text=_merged(own, await self._control_metrics()),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8", **GUARD_HEADERS},
        )

    def not_ready(self) -> str | None:
        """Why this worker cannot answer calls."""
        if self._state.draining:
            return "draining"
        if not self._live.known:
            return "what is live is not known yet"
        if not self._live.ready:
            return "no engine is up"
        return None

    async def _control_metrics(self) -> str:
        """The control plane's series. If it is slow, its latest ones: a gap would look as if it were down."""
        now = time.monotonic()
        try:
            async with asyncio.timeout(SCRAPE_PATIENCE):
                async with self._link.session.get("http://control/internal/metrics") as reply:
                    if reply.status != 200:
                        return ""
                    self._last = (await reply.read()).decode("utf-8", "replace")
                    self._last_at = now
                    return self._last
        except TimeoutError:
            return self._last if now - self._last_at < KEPT_ANSWER_S else ""
        except (aiohttp.ClientError, OSError):
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
