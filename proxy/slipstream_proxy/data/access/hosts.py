"""Which web pages may ask a proxy that has no keys. Not compiled: aiohttp's requests are read here."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from slipstream_proxy.data.wire.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from slipstream_proxy.data.access.admission import Admission

_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_KEPT: Final = 256
"""Host values that were found to be fine."""


class AllowedHosts:
    """Without keys anybody on this machine may ask, but no web page in its browser. DNS rebinding shows in Host, and
    a request of another site's page in Origin. With keys both may be anything: a page has no key.

    A request without Host passes: every browser sends one.
    """

    def __init__(self, admission: Admission, names: Iterable[str]) -> None:
        """``names``, in lower case, are served beside loopback addresses."""
        self._admission = admission
        self._names = set(names)
        self._fine: set[bytes] = set()

    def serves(self, host: bytes) -> bool:
        """Whether a request may go on whose Host field has this value. For each new head: mostly one look-up."""
        if host in self._fine or not self._admission.open:
            return True
        named = host.decode("latin-1")
        if not _HOST.fullmatch(named) or not self._allows(_hostname(f"//{named}")):
            return False
        if len(self._fine) < _KEPT:
            self._fine.add(host)
        return True

    def check(self, request: web.BaseRequest) -> None:
        """Host and Origin. Raises ``RequestRefused`` (403)."""
        if not self._admission.open:
            return
        # a target that is a whole URL names its host, too; without both it is the address that was connected to
        whole = _hostname(f"//{request.host}") or request.host
        named = request.headers.getall("Host", ())
        if not self._allows(whole) or not all(self.serves(host.encode("utf-8", "replace")) for host in named):
            raise RequestRefused(403, "Host: this name is not served (proxy.allowed_hosts adds one)", param="host")
        if not all(self._allows(_hostname(origin)) for origin in request.headers.getall("Origin", ())):
            message = "Origin: another site's page may not ask this (proxy.allowed_hosts adds one)"
            raise RequestRefused(403, message, param="origin")

    def _allows(self, name: str | None) -> bool:
        try:
            return name is not None and (name in self._names or ip_address(name).is_loopback)
        except ValueError:
            return False


def _hostname(url: str) -> str | None:
    """Without the dot that ends a name's absolute form."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return None
    return name.removesuffix(".") if name else name
