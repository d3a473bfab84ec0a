"""Connections without sockets: what one side writes the other side's protocol gets, in the next turn of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

Factory = Callable[[], Any]
"""Makes a protocol (some of ours are no subclasses of ``asyncio.Protocol``)."""


class MemoryTransport(asyncio.Transport):
    """One end. Without a ``peer`` it keeps what is written to it in ``got``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._loop, self._protocol = loop, protocol
        self.peer: MemoryTransport | None = None
        self.got = bytearray()
        self.closed = False
        self._paused = False
        self._held: list[bytes] = []
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if self.closed:
            return
        if self.peer is None:
            self.got += data
        elif not self.peer.closed:
            self._loop.call_soon(self.peer.feed, bytes(data))

    def feed(self, data: bytes) -> None:
        """Bytes arrive."""
        if self._paused:
            self._held.append(data)
        elif not self.closed:
            self._protocol.data_received(data)

    def end(self) -> None:
        """The other side sends no more."""
        if not self.closed and not self._protocol.eof_received():
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.call_soon(self._protocol.connection_lost, None)
        if self.peer is not None:
            self._loop.call_soon(self.peer.end)

    def abort(self) -> None:
        self.close()

    def write_eof(self) -> None:
        if self.peer is not None:
            self._loop.call_soon(self.peer.end)

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for data in held:
            self._loop.call_soon(self.feed, data)

    def is_reading(self) -> bool:
        return not self._paused

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is held back."""


class MemoryLoop(asyncio.SelectorEventLoop):
    """A loop on which clients reach the servers in ``at`` by ``host:port``, or by that as the path of a Unix socket."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, Factory] = {}

    async def create_unix_connection(self, factory: Factory, path: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self.connect(factory, str(path))

    async def create_connection(self, factory: Factory, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self.connect(factory, f"{host}:{port}")

    def connect(self, factory: Factory, name: str) -> tuple[MemoryTransport, Any]:
        """Raises ``ConnectionRefusedError``."""
        server = self.at.get(name)
        if server is None:
            raise ConnectionRefusedError(name)
        near, far = factory(), server()
        mine, theirs = MemoryTransport(self, near), MemoryTransport(self, far)
        mine.peer, theirs.peer = theirs, mine
        return mine, near

    def enter(self) -> None:
        """From here on it runs in this thread, whenever ``settle`` is called."""
        asyncio.events._set_running_loop(self)
        self._thread_id = threading.get_ident()

    def leave(self) -> None:
        """Other loops may run in this thread again."""
        asyncio.events._set_running_loop(None)
        self._thread_id = None

    def settle(self, turns: int = 10_000) -> None:
        """Until nothing is left to do but to wait for time to pass."""
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            self.call_soon(int)  # or it would wait
        self._run_once()  # type: ignore[attr-defined]  # with the timers that are due
        while ready and (turns := turns - 1) > 0:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
