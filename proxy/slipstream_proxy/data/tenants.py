"""A plane for each tenant in a worker: made at its first call, and shared with nobody but for engines and keys.

Not compiled: it makes planes, and aiohttp's requests are read here.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import aiohttp

from slipstream.contract import Headers as Names
from slipstream.contract import KeyScope
from slipstream.errors import ConfigError
from slipstream.settings import TenantConfig
from slipstream.shared.files import open_way
from slipstream.shared.tenant_names import TENANT_NAME_RULE, is_tenant_name
from slipstream.tenants import tenant_config
from slipstream_proxy.data.observe.exposition import render
from slipstream_proxy.data.observe.metrics import UNKNOWN_TENANTS_METRIC, read_parts
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.data.routes.control import ends_run
from slipstream_proxy.data.routes.health import SCRAPE_PATIENCE
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.replies import first_fields
from slipstream_proxy.keys import KEYLESS_CALLER, Key
from slipstream_proxy.process.settings_file import TOLD_FILE_NAME, Stand, stand_of, told_tenants

if TYPE_CHECKING:
    from aiohttp import web

    from slipstream.config import Config
    from slipstream_proxy.data.call.services import Services
    from slipstream_proxy.data.routes.control import ControlRoutes
    from slipstream_proxy.data.routes.passthrough import Passthrough
    from slipstream_proxy.data.wire.request import Headers

log = logging.getLogger(__name__)
OPERATOR_SCOPES = (KeyScope.ADMIN, KeyScope.TRAINER, KeyScope.JUDGE)
"""Scopes of which one makes a key that is no tenant's the operator's, or a part of the operator's Slipstream."""
SCRAPER_SCOPES = (*OPERATOR_SCOPES, KeyScope.VIEWER)
TENANT_FIELD = Names.TENANT.encode()
LOOK_INTERVAL_S = 0.5
SCRAPED_AT_ONCE = 8
Beside = Callable[[Plane], Coroutine[Any, Any, None]]


class TenantPlanes:
    """One worker's. ``beside``: what runs as long as a plane does."""

    def __init__(self, first: Plane, beside: tuple[Beside, ...] = ()) -> None:
        self._first, self._beside = first, beside
        self._planes: dict[str, Plane] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._folders: dict[str, int] = {}
        """Tenant → descriptor of its folder, which tells whether that is still there."""
        self._ending: set[asyncio.Task[None]] = set()
        self._generation = -1
        tag = first.config.proxy.tenant_tag
        self._tag = f"{Names.TAG}{tag}".lower().encode() if tag else b""
        self._declared = first.config
        self._stand: Stand = None
        first.services.tenants = self
        first.services.tenant_fields = (TENANT_FIELD, self._tag) if self._tag else (TENANT_FIELD,)

    def __iter__(self) -> Iterator[Plane]:
        """All planes, the worker's own first."""
        return iter((self._first, *self._planes.values()))

    @property
    def some(self) -> bool:
        return bool(self._planes or self._known())

    def of(self, key: Key, headers: Headers) -> Services:
        return self._plane(key, headers).services

    def control(self, request: web.BaseRequest) -> ControlRoutes:
        """Raises ``RequestRefused``: it asks in the place of a tenant that it may not be."""
        return self._asked(request, tagged=ends_run(request)).control

    def passthrough(self, request: web.BaseRequest) -> Passthrough:
        """Raises ``RequestRefused``."""
        return self._asked(request).passthrough

    async def metrics(self, request: web.BaseRequest) -> dict[str, tuple[str, ...]]:
        """Tenant → its series, as texts: of its workers and its control plane. Empty: no operator's key asks."""
        try:
            key, _ = self._first.admission.who(first_fields(request))
        except RequestRefused:
            return {}
        if key is KEYLESS_CALLER or key.tenant or not any(key.may(scope) for scope in SCRAPER_SCOPES):
            return {}
        turn, names = asyncio.Semaphore(SCRAPED_AT_ONCE), sorted(self._known())

        async def one(name: str) -> tuple[str, ...]:
            async with turn:
                return await _series(self._declared, name)

        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    def _asked(self, request: web.BaseRequest, *, tagged: bool = True) -> Plane:
        """``tagged``: the tag counts. It says whose a run is, and opens nothing to read."""
        headers = first_fields(request)
        admission = self._first.admission
        if admission.open:
            key = KEYLESS_CALLER
        else:
            try:
                key, _ = admission.who(headers)
            except RequestRefused:  # the page itself needs no key; all else says so in its own format
                return self._first
        return self._plane(key, headers, tagged=tagged)

    def _plane(self, key: Key, headers: Headers, *, tagged: bool = True) -> Plane:
        self.look()
        named = headers.get(TENANT_FIELD)
        name = key.tenant
        if named is not None:
            asked = named.decode("latin-1").strip()
            if name and asked != name:
                fix = f"leave the header out: this key is of the tenant {name}"
                raise RequestRefused(403, "this key is of another tenant", field=f"header.{Names.TENANT}", fix=fix)
            if asked and not name and not any(key.may(scope) for scope in OPERATOR_SCOPES):
                fix = f"send a key of that tenant, or one of none with a scope of {', '.join(OPERATOR_SCOPES)}"
                why = "only an operator's key may ask in a tenant's place"
                raise RequestRefused(403, why, field=f"header.{Names.TENANT}", fix=fix)
            name = asked
        elif not name and self._tag and tagged:
            name = headers.get(self._tag, b"").decode("latin-1")
            if name and name not in self._planes and name not in self._known():
                self._first.metrics.add(UNKNOWN_TENANTS_METRIC)
                name = ""
        return self._first if not name else self._planes.get(name) or self._make(name)

    async def follow(self) -> None:
        """Quotas that change in the settings file hold at once, and tenants that are removed are left."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            try:
                self._look()
                if self._planes:
                    self._generation = -1  # a tenant without a key may have been taken out of the settings
                    self.look()
            except Exception:
                log.exception("tenants' settings and folders cannot be followed")

    def _look(self) -> None:
        stand = stand_of(self._first.config.root / TOLD_FILE_NAME)
        if stand == self._stand:
            return
        self._declared = told_tenants(self._declared)
        for name, plane in self._planes.items():
            if plane.quotas is not None:
                plane.quotas.follow(self._declared.tenants.get(name, TenantConfig()).quota)
        self._stand = stand

    def _known(self) -> set[str]:
        self._look()
        return {*self._declared.tenants, *self._first.admission.keys.tenants()}

    def _make(self, name: str) -> Plane:
        field = f"header.{Names.TENANT}"
        if name not in self._known():
            fix = f'declare it ([tenants."{name}"]), or make a key of it: slipstream keys add NAME --tenant {name}'
            if not is_tenant_name(name):
                fix = f"name a tenant: {TENANT_NAME_RULE}"
            raise RequestRefused(404, f"there is no tenant {name}", field=field, fix=fix)
        try:
            config = tenant_config(self._declared, name)
            open_way(config.adapters_dir)
            config.spool_dir.mkdir(parents=True, exist_ok=True)
            plane = Plane(config, self._first.number, first=self._first)
        except (ConfigError, OSError) as e:
            log.error("calls of the tenant %s cannot be served: %s", name, e)
            raise RequestRefused(503, f"the tenant {name} cannot be served: {e}", field=field, retry_after=5.0) from e
        plane.metrics.resume(plane.metrics_file)
        self._planes[name], self._folders[name] = plane, os.open(config.root, os.O_RDONLY | os.O_CLOEXEC)
        self._tasks[name] = [asyncio.create_task(run(plane), name=f"tenant {name}") for run in self._beside]
        return plane

    def look(self) -> None:
        """Leave tenants that were removed: one that comes back under the same name has another folder."""
        generation = self._first.admission.keys.generation()
        if generation == self._generation:
            return
        self._generation, known = generation, self._known()
        for name in [n for n, folder in self._folders.items() if n not in known or not os.fstat(folder).st_nlink]:
            os.close(self._folders.pop(name))
            for task in self._tasks.pop(name):
                task.cancel()
            ending = asyncio.create_task(_end(self._planes.pop(name)), name=f"end of {name}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for task in [*self._ending, *(task for tasks in self._tasks.values() for task in tasks)]:
            task.cancel()
        for plane in self._planes.values():
            await plane.close()


async def _series(config: Config, name: str) -> tuple[str, ...]:
    try:
        own = tenant_config(config, name)
    except ConfigError:  # its status says so
        return ()
    files = sorted((own.root / "metrics").glob("data*.json"))
    workers = render([part for path in files for part in read_parts(path)])
    connector, timeout = aiohttp.UnixConnector(str(own.socket)), aiohttp.ClientTimeout(total=SCRAPE_PATIENCE)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get("http://control/internal/metrics", raise_for_status=True) as reply,
        ):
            return workers, await reply.text()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return (workers,)


async def _end(plane: Plane) -> None:
    while plane.services.in_flight:
        await asyncio.sleep(LOOK_INTERVAL_S)
    await plane.close()
