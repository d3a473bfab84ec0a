"""Both ends of a request to an engine: the receiver of its reply, and the handle that ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream_proxy.data.wire.http1 import ResponseHead


class FlowControl:
    """Who can stop and go on sending, as ``asyncio.Transport`` does with reading."""

    __slots__ = ()

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError


class Connection(FlowControl):
    """One that a request went out on."""

    __slots__ = ()

    def drop(self) -> None:
        """Close it: nobody wants the reply."""
        raise NotImplementedError

    def take_turn(self, size: int) -> bool:
        """Take so many of the bytes that wait. → Whether more do."""
        raise NotImplementedError


class Receiver(FlowControl):
    """Gets a response in httptools' callbacks. A class and no protocol: compiled, its calls are C calls."""

    __slots__ = ()

    def share(self) -> str:
        """Whose it is: what large replies of one key leave to those of others is said in ``turns.py``."""
        return ""

    def on_headers_complete(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def on_body(self, data: bytes) -> None:
        """What one read brought of the body, without its framing."""
        raise NotImplementedError

    def on_message_complete(self) -> None:
        raise NotImplementedError

    def on_error(self, why: str, *, kind: str) -> None:
        """``kind``: ``connect`` (no byte was sent), ``stale`` (an idle connection closed), ``broken``, ``timeout``."""
        raise NotImplementedError


class Sent(FlowControl):
    """A request that was sent, or will be as soon as its connection is there."""

    __slots__ = ("connection", "dropped", "paused")

    def __init__(self) -> None:
        self.connection: Connection | None = None
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
