"""A plane for each tenant in a worker: made at its first call, and shared with nobody but for engines and keys.

Not compiled: it makes planes, and aiohttp's requests are read here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from slipstream.contract import Headers as Names
from slipstream.contract import KeyScope
from slipstream.errors import ConfigError
from slipstream.tenants import tenant_config
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.replies import first_fields
from slipstream_proxy.keys import KEYLESS_CALLER, Key
from slipstream_proxy.process.settings_file import told_tenants

if TYPE_CHECKING:
    from aiohttp import web

    from slipstream_proxy.data.call.services import Services
    from slipstream_proxy.data.routes.control import ControlRoutes
    from slipstream_proxy.data.routes.passthrough import Passthrough
    from slipstream_proxy.data.wire.request import Headers

log = logging.getLogger(__name__)
OPERATOR_SCOPES = (KeyScope.ADMIN, KeyScope.TRAINER, KeyScope.JUDGE)
"""Scopes of which one makes a key that is no tenant's the operator's, or a part of the operator's Slipstream."""
TENANT_FIELD = Names.TENANT.encode()
Beside = Callable[[Plane], Coroutine[Any, Any, None]]


class TenantPlanes:
    """One worker's. ``beside``: what runs as long as a plane does."""

    def __init__(self, first: Plane, beside: tuple[Beside, ...] = ()) -> None:
        self._first, self._beside = first, beside
        self._planes: dict[str, Plane] = {}
        self._tasks: list[asyncio.Task[None]] = []
        tag = first.config.proxy.tenant_tag
        self._tag = f"{Names.TAG}{tag}".lower().encode() if tag else b""
        self._declared = first.config
        first.services.tenants = self

    def __iter__(self) -> Iterator[Plane]:
        """All planes, the worker's own first."""
        return iter((self._first, *self._planes.values()))

    @property
    def some(self) -> bool:
        return bool(self._planes or self._known())

    def of(self, key: Key, headers: Headers, own: Services) -> Services:
        if not key.tenant and TENANT_FIELD not in headers and not self._tag:
            return own
        return self._plane(key, headers).services

    def control(self, request: web.BaseRequest) -> ControlRoutes:
        """Raises ``RequestRefused``: it asks in the place of a tenant that it may not be."""
        return self._asked(request).control

    def passthrough(self, request: web.BaseRequest) -> Passthrough:
        """Raises ``RequestRefused``."""
        return self._asked(request).passthrough

    def _asked(self, request: web.BaseRequest) -> Plane:
        headers = first_fields(request)
        admission = self._first.admission
        if admission.open:
            key = KEYLESS_CALLER
        else:
            try:
                key, _ = admission.who(headers)
            except RequestRefused:  # the page itself needs no key; all else says so in its own format
                return self._first
        return self._plane(key, headers)

    def _plane(self, key: Key, headers: Headers) -> Plane:
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
        elif not name and self._tag:
            name = headers.get(self._tag, b"").decode("latin-1")
            if name and name not in self._planes and name not in self._known():
                self._first.metrics.add("slipstream_unknown_tenants_total")
                name = ""
        return self._first if not name else self._planes.get(name) or self._make(name)

    def _known(self) -> set[str]:
        self._declared = told_tenants(self._declared)
        return {*self._declared.tenants, *self._first.admission.keys.tenants()}

    def _make(self, name: str) -> Plane:
        field = f"header.{Names.TENANT}"
        if name not in self._known():
            fix = f'declare it ([tenants."{name}"]), or make a key of it: slipstream keys add NAME --tenant {name}'
            raise RequestRefused(404, f"there is no tenant {name}", field=field, fix=fix)
        try:
            config = tenant_config(self._declared, name)
            config.spool_dir.mkdir(parents=True, exist_ok=True)
            plane = Plane(config, self._first.number, first=self._first)
        except (ConfigError, OSError) as e:
            log.error("calls of the tenant %s cannot be served: %s", name, e)
            raise RequestRefused(503, f"the tenant {name} cannot be served: {e}", field=field, retry_after=5.0) from e
        plane.metrics.resume(plane.metrics_file)
        self._planes[name] = plane
        self._tasks += [asyncio.create_task(run(plane), name=f"tenant {name}") for run in self._beside]
        return plane

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for plane in self._planes.values():
            await plane.close()
