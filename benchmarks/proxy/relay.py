"""A relay that knows nothing of what it carries: what any proxy between agent and engine costs at least.

``python benchmarks/proxy/relay.py PORT ENGINE_PORT PROCESSES``. A connection to the engine for each one to it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys


class Side(asyncio.Protocol):
    """One connection. What it reads goes to ``other``, and what comes before there is one waits."""

    def __init__(self, engine: int, other: Side | None = None) -> None:
        self.engine, self.other = engine, other
        self.early: list[bytes] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.other is None:
            self.dialling = asyncio.get_running_loop().create_task(self.dial())
            return
        self.other.other = self
        transport.writelines(self.other.early)

    async def dial(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: Side(self.engine, self), "127.0.0.1", self.engine
            )
        except OSError:
            if self.transport is not None:
                self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve(sock: socket.socket, engine: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Side(engine), sock=sock, backlog=4096)
    await server.serve_forever()


def main() -> None:
    port, engine, processes = (int(value) for value in sys.argv[1:])
    sock = socket.create_server(("127.0.0.1", port), backlog=4096)
    for _ in range(processes - 1):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # it ends with its parent
            break
    asyncio.run(serve(sock, engine))


if __name__ == "__main__":
    main()
