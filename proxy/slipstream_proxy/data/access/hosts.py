"""Which web pages may ask a proxy that has no keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slipstream_proxy.data.wire.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from slipstream_proxy.data.access.admission import Admission

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")


class AllowedHosts:
    """Without keys anybody on this machine may ask, but no web page in its browser. DNS rebinding shows in Host, and
    a request of another site's page in Origin.
    """

    def __init__(self, admission: Admission, names: Iterable[str]) -> None:
        """``names`` are served beside those of the loopback interface."""
        self._admission = admission
        self._allowed: set[str | None] = {*_LOOPBACK, *(name.lower() for name in names)}

    def check(self, request: web.BaseRequest) -> None:
        """Host and Origin. Raises ``RequestRefused`` (403)."""
        if self._admission.open:
            named = request.headers.get("Host", "")
            # a target that is a whole URL names its host, too
            hosts = {_hostname(f"//{named}"), _hostname(f"//{request.host}")}
            if not _HOST.fullmatch(named) or not hosts <= self._allowed:
                raise RequestRefused(403, "Host: this name is not served (proxy.allowed_hosts adds one)", param="host")
        self.check_origin(request)

    def check_origin(self, request: web.BaseRequest) -> None:
        """Enough where only what is sent matters: a browser names the page's origin with every POST. Raises
        ``RequestRefused`` (403).
        """
        origins = request.headers.getall("Origin", ())
        if self._admission.open and any(_hostname(origin) not in self._allowed for origin in origins):
            message = "Origin: another site's page may not ask this (proxy.allowed_hosts adds one)"
            raise RequestRefused(403, message, param="origin")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
