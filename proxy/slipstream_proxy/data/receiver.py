"""Both ends of a request that is on its way to an engine: who is told what comes back, and what ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream_proxy.data.http1 import ResponseHead
    from slipstream_proxy.data.upstream import Upstream


class Receiver:
    """Who is told what comes back. A class and no protocol: compiled, its calls are C calls."""

    __slots__ = ()

    def up_head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def up_body(self, data: bytes) -> None:
        """What one read brought of the body, without its framing."""
        raise NotImplementedError

    def up_end(self) -> None:
        raise NotImplementedError

    def up_failed(self, why: str, *, kind: str) -> None:
        """``kind``: ``connect`` (no byte was sent), ``stale`` (an idle connection was closed before a byte came), ``broken``, ``timeout``."""
        raise NotImplementedError


class Sent:
    """A request on its way."""

    __slots__ = ("connection", "dropped", "paused")

    def __init__(self) -> None:
        self.connection: Upstream | None = None
        self.dropped = False
        self.paused = False

    def drop(self) -> None:
        self.dropped = True
        if self.connection is not None:
            self.connection.drop()

    def pause(self) -> None:
        self.paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        self.paused = False
        if self.connection is not None:
            self.connection.resume()
