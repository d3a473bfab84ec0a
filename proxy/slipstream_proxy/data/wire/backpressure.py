"""A client that does not read, or is out of reach, keeps a slot of the engine. This ends its call in time.

Not compiled: it runs once a second.
"""

from __future__ import annotations

import fcntl
import select
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_TIOCOUTQ = 0x5411
"""Linux: bytes that the peer has not acknowledged."""


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that the client has not taken; 0 while all of them are the operating system's."""
    waiting = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if waiting and sock is not None and sys.platform == "linux":
        try:
            waiting += struct.unpack("i", fcntl.ioctl(sock.fileno(), _TIOCOUTQ, bytes(4)))[0]
        except OSError:
            pass
    return waiting


def hung_up(transport: asyncio.Transport) -> bool:
    """Whether the client is gone, though nothing is read from it at the moment."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class StalledClients:
    """``ended`` is asked once a second. Whoever takes a byte now and then stays."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._waiting: dict[asyncio.Transport, tuple[int, float]] = {}

    def ended(self, transports: Iterable[asyncio.Transport | None], now: float) -> list[asyncio.Transport]:
        """Those that took nothing for ``timeout`` seconds."""
        before, self._waiting = self._waiting, {}
        found = []
        for transport in transports:
            if transport is None or not (size := unsent(transport)):
                continue
            last, since = before.get(transport, (size, now))
            if size < last:
                since = now
            if now - since > self.timeout:
                found.append(transport)
            self._waiting[transport] = size, since
        return found
