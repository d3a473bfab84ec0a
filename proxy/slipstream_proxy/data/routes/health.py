"""``/healthz`` (the worker lives), ``/readyz`` (it can answer calls), ``/metrics``: they need nothing else to be up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

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


class TenantSeries(Protocol):
    async def metrics(self, request: web.BaseRequest) -> Mapping[str, tuple[str, ...]]:
        """Tenant → its series, as texts. Empty: no operator's key asks."""


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
        tenants: TenantSeries | None = None,
    ) -> None:
        """``file`` is where this worker's metrics are saved; the others' lie beside it."""
        self._state, self._live, self._metrics, self._file = state, live, metrics, file
        self._link, self._hosts, self._tenants = link, hosts, tenants
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
        text = _merged(own, await self._control_metrics())
        if self._tenants is not None:
            text = with_tenants(text, await self._tenants.metrics(request))
        return web.Response(
            text=text,
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


def with_tenants(text: str, series: Mapping[str, tuple[str, ...]]) -> str:
    """Each family with the tenants' samples behind its own, under a label ``tenant``."""
    if not series:
        return text
    families: dict[str, list[str]] = {}
    for tenant, texts in (("", (text,)), *sorted(series.items())):
        found = [(family, line) for part in texts for family, line in _lines(part)]
        for family, line in found:
            lines = families.setdefault(family, [])
            if line.startswith("#"):
                if line not in lines and not (tenant and any(known.startswith("# TYPE") for known in lines)):
                    lines.append(line)
                continue
            name, brace, rest = line.partition("{") if "{" in line.split(" ", 1)[0] else (line, "", "")
            if tenant and brace:
                line = f'{name}{{tenant="{tenant}",{rest}'
            elif tenant:
                name, _, value = line.partition(" ")
                line = f'{name}{{tenant="{tenant}"}} {value}'
            lines.append(line)
    return "\n".join(line for lines in families.values() for line in lines) + "\n"


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """(Family, line) of an exposition."""
    family = ""
    for line in text.split("\n"):
        if line.startswith(("# HELP ", "# TYPE ")):
            family = line.split(" ", 3)[2]
        if line:
            yield family, line


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
