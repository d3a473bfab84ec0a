"""What the connections of a worker share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.config import Config
    from slipstream_proxy.data.access.hosts import AllowedHosts
    from slipstream_proxy.data.call.services import Services
    from slipstream_proxy.data.wire.connection import ClientConnection


class ServerState:
    """Limits of requests in bytes, timeouts in seconds, and who is connected."""

    __slots__ = (
        "body_limit",
        "client_timeout",
        "connections",
        "draining",
        "header_limit",
        "header_timeout",
        "hosts",
        "services",
    )

    def __init__(self, config: Config, services: Services, hosts: AllowedHosts) -> None:
        proxy = config.proxy
        self.hosts = hosts
        self.services = services
        self.header_limit, self.body_limit = proxy.header_limit, proxy.body_limit
        self.header_timeout, self.client_timeout = proxy.header_timeout, proxy.client_timeout
        self.connections: set[ClientConnection] = set()
        """Those that aiohttp has not taken over."""
        self.draining = False
        """The worker ends: a connection closes after the reply that it is at."""
