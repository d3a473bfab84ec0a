"""Where a reply goes: to a connection of ours, or to the coroutine that writes it through aiohttp."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream_proxy.data.wire.receiver import FlowControl

_HIGH = 256 * 1024
END_MARK, ABORT_MARK = object(), object()


class Sink:
    """Where a reply goes. ``block``: header lines with line ends. A class, so that calls are C calls."""

    __slots__ = ()

    def send_whole(self, status: int, block: bytes, body: bytes, *, close: bool = False) -> None:
        raise NotImplementedError

    def send_head(self, status: int, block: bytes) -> None:
        raise NotImplementedError

    def send_part(self, data: bytes) -> None:
        raise NotImplementedError

    def send_end(self, data: bytes) -> None:
        """The last part, which may be empty, and the body's end."""
        raise NotImplementedError

    def break_off(self) -> None:
        """End the connection without the body's end: the client sees that something broke."""
        raise NotImplementedError


class QueueSink(Sink):
    """Hands a call's reply to the coroutine that writes it through aiohttp."""

    def __init__(self) -> None:
        self.call: FlowControl | None = None
        self.reply: tuple[int, bytes, bytes | None, bool] | None = None
        self._queue: deque[object] = deque()
        self._bytes = 0
        self._event = asyncio.Event()

    def send_whole(self, status: int, block: bytes, body: bytes, *, close: bool = False) -> None:
        self.reply = (status, block, body, close)
        self._event.set()

    def send_head(self, status: int, block: bytes) -> None:
        self.reply = (status, block, None, False)
        self._event.set()

    def send_part(self, data: bytes) -> None:
        self._queue.append(data)
        self._bytes += len(data)
        if self._bytes > _HIGH and self.call is not None:
            self.call.pause()
        self._event.set()

    def send_end(self, data: bytes) -> None:
        if data:
            self.send_part(data)
        self._queue.append(END_MARK)
        self._event.set()

    def break_off(self) -> None:
        self._queue.append(ABORT_MARK)
        self._event.set()

    async def head(self) -> tuple[int, bytes, bytes | None, bool]:
        while self.reply is None:
            await self._event.wait()
        self._event.clear()
        if self._queue:
            self._event.set()
        return self.reply

    async def take(self) -> object:
        while not self._queue:
            self._event.clear()
            await self._event.wait()
        item = self._queue.popleft()
        if isinstance(item, bytes):
            self._bytes -= len(item)
            if not self._bytes and self.call is not None:
                self.call.resume()
        return item
