"""Accepts connections while there is room for them, so that clients never take the last open file.

A connection that has sent nothing yet may be closed for another's sake, the oldest first; then one that waits between
two calls, or whose head does not end. One with a call is never closed: new ones wait in the kernel's queue until one of
its kind ends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING, Final

from slipstream_proxy.process.descriptors import for_clients, limit

if TYPE_CHECKING:
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.data.server.connection import ClientConnection
    from slipstream_proxy.data.server.listener import Handler, Server

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Connections of one turn of the loop: those closed for their sake are gone by the next."""
SILENT_SHARE: Final = 0.5
"""Of the room: connections that have asked nothing yet take no more."""
RETRY_S: Final = 0.05
"""Until the next look for room, where every connection has a call."""
SAY_EVERY_S: Final = 60.0
CLOSED_METRIC = "slipstream_connections_closed_total"
DELAYED_METRIC = "slipstream_accepts_delayed_total"


class Acceptor:
    """Of one listening socket. ``room``: connections at most."""

    def __init__(self, server: Server, sock: socket.socket, metrics: WorkerMetrics, room: int | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._server, self._sock, self._metrics = server, sock, metrics
        self.room = for_clients() if room is None else room
        self._coming: set[asyncio.Task[object]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._said = float("-inf")
        self._closed = 0
        """Since it was last said."""
        metrics.set("slipstream_connections_limit", self.room)
        sock.setblocking(False)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accepts no more. Those in the queue are left to other workers."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            if not self._has_room():
                self._wait()
                return
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._say(f"the system gives no more open files ({e.strerror})")
                self._wait()
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._take(connection))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    async def _take(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._server, connection)
        except OSError:  # the client is gone
            connection.close()

    def _has_room(self) -> bool:
        """Makes room, too."""
        state = self._server.state
        if len(state.silent) >= max(1, int(self.room * SILENT_SHARE)):
            self._end(next(iter(state.silent)), "silent")
        if self._server.connected + len(self._coming) < self.room:
            return True
        oldest = next(iter(state.silent), None)
        if oldest is not None:
            self._end(oldest, "silent")
            return True
        idle = self._server.longest_idle()
        if idle is not None:
            self._end(idle, "idle")
            return True
        self._metrics.add(DELAYED_METRIC)
        self._say("every connection has a call: new ones wait")
        return False

    def _end(self, client: ClientConnection | Handler, why: str) -> None:
        client.abort()
        self._closed += 1
        self._metrics.add(CLOSED_METRIC, f'why="{why}"')
        self._say("connections without a call are closed for new ones")

    def _say(self, what: str) -> None:
        now = self._loop.time()
        if now - self._said > SAY_EVERY_S:
            log.warning(
                "%s: %d open files leave room for %d clients of this worker (%d were closed since this was last said); "
                "raise the hard limit (ulimit -Hn, LimitNOFILE, --ulimit nofile), or find who connects",
                *(what, limit(), self.room, self._closed),
            )
            self._said, self._closed = now, 0

    def _wait(self) -> None:
        self._loop.remove_reader(self._sock)
        self._retry = self._loop.call_later(RETRY_S, self._again)

    def _again(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock, self._accept)
