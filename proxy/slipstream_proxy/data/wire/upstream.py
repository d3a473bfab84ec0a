"""Keep-alive connections to an engine, in callback style: half of a proxy's time goes to its HTTP client when that is
a general one.

A ``Pool`` belongs to one upstream. ``Pool.send`` gives a request to an idle connection or a new one, and the
connection tells its ``Receiver`` what comes back.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast
from urllib.parse import urlsplit

from slipstream_proxy.data.wire.http1 import ChunkedBody, RemoteProtocolError, RepeatedHead, ResponseHead
from slipstream_proxy.data.wire.receiver import Connection, Receiver, Sent
from slipstream_proxy.data.wire.turns import SMALL_BYTES, WHOLE_FACTOR, Turns

log = logging.getLogger(__name__)

MAX_HEAD = 256 * 1024
MAX_INFORMATIONAL = 16
"""Heads with a status of 1xx before one response."""
MAX_REPLY: Final = 256 * 2**20
"""Bytes of one response. All of them are kept for its record."""
REPLIES_BYTES = 512 * 2**20
"""Bytes of all responses that a worker receives at a time."""


TOO_MUCH = "the largest of the replies that this worker receives, which are larger than %d bytes together"


def redirected(status: int) -> str:
    """Neither the proxy nor a client may follow it: keys and conversations would go to another server."""
    return f"it redirects (status {status}), which is never followed: configure the address that answers"


class UpstreamConnection(Connection):
    """One connection, an ``asyncio.Protocol`` in all but its base class. ``receiver`` is None while it is idle."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.receiver: Receiver | None = None
        self.transport: asyncio.Transport | None = None
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._body: ChunkedBody | None = None
        self._left: int | None = None
        self._ease = 1
        """By what its pieces may be larger than those of events."""
        self.received = self._informational = 0
        self.fresh = True
        self.paused = False
        """Its client takes no more."""
        self._held = b""
        """What came and waits for its turn, from ``_at`` on."""
        self._at = 0
        self._in_line = self._stopped = False
        """``_stopped``: its socket is not read."""
        self.last = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self.pool.all.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes, receiver: Receiver) -> None:
        self.receiver = receiver
        self._head = self._body = self._left = None
        self.received = self._informational = 0
        self._buffer = b""
        self.last = self.pool.now
        assert self.transport is not None
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.receiver is None:  # bytes that nobody asked for
            self.drop()
            return
        self.last = self.pool.now
        self.received += len(data)
        try:
            if self.received > MAX_REPLY:
                raise RemoteProtocolError(f"larger than {MAX_REPLY} bytes")
            largest = self.pool.memory.grow(len(data))
            if largest is self:
                raise RemoteProtocolError(TOO_MUCH % self.pool.memory.limit)
            if largest is not None:
                largest.give_up(TOO_MUCH % self.pool.memory.limit)
            if self._head is None:
                data = self._take_head(data)
            if self.receiver is not None and (data or self._left == 0):
                self._take_in_turn(data, self.receiver)
        except RemoteProtocolError as e:
            self.give_up(str(e))

    def _take_in_turn(self, data: bytes, receiver: Receiver) -> None:
        size = len(data) // self._ease
        if not self._held and (size <= SMALL_BYTES or self.pool.memory.turns.at_once(receiver.share(), size)):
            self._take_body(data)
            return
        self._held += data
        self._wait(receiver)
        self._flow()

    def _wait(self, receiver: Receiver) -> None:
        if not self._in_line:
            self._in_line = True
            self.pool.memory.turns.wait(receiver.share(), self)

    def take_turn(self, size: int) -> bool:
        if self._held and not self.paused:
            piece = self._held[self._at : self._at + size * self._ease]
            self._at += len(piece)
            if self._at == len(self._held):
                self._held, self._at = b"", 0
            self.last = self.pool.now
            try:
                self._take_body(piece)
            except RemoteProtocolError as e:
                self.give_up(str(e))
            except Exception:
                log.exception("a part of a reply could not be taken")
                self._fail("the proxy failed at this reply", "broken")
            self._flow()
        self._in_line = bool(self._held) and not self.paused
        return self._in_line

    def _flow(self) -> None:
        """Read its socket, or do not."""
        stop = self.paused or bool(self._held)
        if self.transport is not None and stop != self._stopped:
            self._stopped = stop
            if stop:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def give_up(self, why: str) -> None:
        self._fail(f"the upstream's answer is malformed: {why}", "broken")

    def _take_head(self, data: bytes) -> bytes:
        """→ What stands behind it. Without its end it waits for the next read."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        for known in self.pool.known:
            if known.matches(data):
                head, length = known.value, known.length
                data = data[known.end :]
                break
        else:
            read = self._read_head(data)
            if read is None:
                return b""
            head, data = read
            length = head.length
        self._head = head
        self._left = length
        self._body = ChunkedBody() if head.chunked else None
        self._ease = 1 if head.streams else WHOLE_FACTOR
        assert self.receiver is not None
        self.receiver.on_headers_complete(head)
        return data

    def _read_head(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """The head, and what stands behind it; None: it goes on."""
        while True:
            end = data.find(b"\r\n\r\n")
            if (end if end >= 0 else len(data)) > MAX_HEAD:
                raise RemoteProtocolError("a head without end")
            if end < 0:
                self._buffer = data
                return None
            head = ResponseHead(data[: end + 2])
            start, data = data[: end + 4], data[end + 4 :]
            if 300 <= head.status < 400:
                raise RemoteProtocolError(redirected(head.status))
            if head.status >= 200:  # 1xx are for this hop
                if head.status == 200:
                    self.pool.remember(start, head)
                return head, data
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise RemoteProtocolError("too many heads with a status of 1xx")

    def _take_body(self, data: bytes) -> None:
        receiver, head = self.receiver, self._head
        assert receiver is not None
        assert head is not None
        if head.status < 400:  # heads and errors also come from a server whose model hangs
            self.pool.heard = self.pool.now
        if self._body is not None:
            pieces = self._body.feed(data)
            if pieces:
                receiver.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))
                if self.receiver is not receiver:
                    return
            if self._body.done:
                self._finish(receiver, clean=not self._body.rest)
            return
        left = self._left
        if left is None:
            receiver.on_body(data)
            return
        if data:
            receiver.on_body(data[:left] if len(data) > left else data)
            if self.receiver is not receiver:
                return
        self._left = max(0, left - len(data))
        if len(data) >= left:
            self._finish(receiver, clean=len(data) == left)

    def _finish(self, receiver: Receiver, *, clean: bool) -> None:
        head = self._head
        assert head is not None
        self.receiver = None
        self.resume()
        if clean and not self._held and head.keep_alive and not self.pool.closed:
            self.fresh = False
            self.pool.idle.append(self)
        else:
            self.drop()
        receiver.on_message_complete()

    def pause_writing(self) -> None:
        """A request is as large as its body's limit lets it be."""

    def resume_writing(self) -> None:
        """Nothing was held back."""

    def eof_received(self) -> None:
        if self._head is not None and self._body is None and self._left is None and self.receiver is not None:
            self._finish(self.receiver, clean=False)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self.pool.forget(self)
        if self.receiver is not None:
            if self._head is not None and self._body is None and self._left is None and exc is None:
                self._finish(self.receiver, clean=False)
                return
            untouched = self._head is None and not self._buffer and not self.fresh
            self._fail("the upstream closed the connection", "stale" if untouched else "broken")

    def _fail(self, why: str, kind: str) -> None:
        receiver, self.receiver = self.receiver, None
        self.drop()
        if receiver is not None:
            receiver.on_error(why, kind=kind)

    def expire(self) -> None:
        self._fail("the upstream sent nothing for too long", "timeout")

    def drop(self) -> None:
        """Close at once: an engine aborts what it was generating. The receiver hears nothing more."""
        self.receiver = None
        self._held, self._at = b"", 0
        self.pool.forget(self)
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    def pause(self) -> None:
        self.paused = True
        self._flow()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.last = self.pool.now
            if self._held and self.receiver is not None:
                self._wait(self.receiver)
            self._flow()

    @property
    def waits(self) -> bool:
        """For its client, or for its turn: the engine is not late."""
        return self.paused or bool(self._held)


class KeptReply:
    """A reply of a relayed request, which is kept until it is whole. ``close`` ends it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close
        self.received = 0

    def give_up(self, why: str) -> None:
        self.close()


class ReplyMemory:
    """What all replies that are under way share. Each is kept until it is whole, for its record."""

    def __init__(self, limit: int = REPLIES_BYTES) -> None:
        self.limit = limit
        self.pools: list[Pool] = []
        self.relayed: set[KeptReply] = set()
        self.turns = Turns()
        self._grown = 0
        """What came since the replies were counted, and what they were then."""

    def grow(self, size: int) -> UpstreamConnection | KeptReply | None:
        """So many bytes came. → The largest reply, where all together are too large: it is to end."""
        self._grown += size
        if self._grown <= self.limit:
            return None
        running: list[UpstreamConnection | KeptReply] = [*self.relayed]
        running += [c for pool in self.pools for c in pool.all if c.receiver is not None]
        self._grown = sum(c.received for c in running)
        return max(running, key=lambda c: c.received) if self._grown > self.limit else None


class Pool:
    """Connections to one base URL, ``http(s)://host:port/path`` or ``unix:/path``."""

    def __init__(
        self, url: str, *, connect_timeout: float = 5.0, timeout: float = 600.0, memory: ReplyMemory | None = None
    ) -> None:
        """``memory``: what its replies share with those of other pools."""
        self.url = url
        self.memory = memory if memory is not None else ReplyMemory()
        self.memory.pools.append(self)
        parts = urlsplit(url)
        self.unix = parts.path if parts.scheme == "unix" else None
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host = parts.hostname or "localhost"
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = b"" if self.unix else parts.path.rstrip("/").encode()
        self.authority = (parts.netloc.rpartition("@")[2] or "localhost").encode()
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()
        """As of the last ``sweep``: time-outs are of seconds."""
        self.heard = self.now
        """When the latest byte of a reply's body came on any connection."""
        self.idle: list[UpstreamConnection] = []
        self.all: set[UpstreamConnection] = set()
        self.closed = False
        self.known: list[RepeatedHead[ResponseHead]] = []
        """The latest heads of a whole reply and of a stream: an engine begins each reply with one of them."""
        self._starts: dict[str, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, data: bytes, receiver: Receiver, sent: Sent | None = None, *, fresh: bool = False) -> Sent:
        """Send a whole request. What is returned closes it again, whether it is connected already or not."""
        handle = sent or Sent()
        while self.idle and not fresh:
            connection = self.idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                handle.connection = connection
                connection.send(data, receiver)
                return handle
        task = self.loop.create_task(self._connect(data, receiver, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return handle

    def start(self, path: str) -> bytes:
        """Request line and Host of a ``POST``."""
        found = self._starts.get(path)
        if found is None:
            line = b"POST %b%b HTTP/1.1\r\nHost: %b\r\n"
            found = line % (self.prefix, path.encode("latin-1"), self.authority)
            if len(self._starts) < 256:
                self._starts[path] = found
        return found

    def remember(self, text: bytes, head: ResponseHead) -> None:
        self.known = [RepeatedHead(text, head), *(k for k in self.known if k.value.chunked != head.chunked)]

    async def _connect(self, data: bytes, receiver: Receiver, handle: Sent) -> None:
        connection = UpstreamConnection(self)
        protocol = cast("asyncio.Protocol", connection)
        try:
            async with asyncio.timeout(self.connect_timeout):
                if self.unix:
                    await self.loop.create_unix_connection(lambda: protocol, self.unix)
                else:
                    await self.loop.create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)
        except (OSError, TimeoutError) as e:
            if not handle.dropped:
                receiver.on_error(f"cannot connect to the upstream: {e or type(e).__name__}", kind="connect")
            return
        if handle.dropped or connection.transport is None:
            connection.drop()
            if not handle.dropped:
                receiver.on_error("the upstream closed the connection", kind="connect")
            return
        handle.connection = connection
        connection.send(data, receiver)
        if handle.paused:
            connection.pause()

    def forget(self, connection: UpstreamConnection) -> None:
        self.all.discard(connection)
        try:
            self.idle.remove(connection)
        except ValueError:
            pass

    def silent(self) -> bool:
        """Whether no connection has brought a reply's byte for as long as a request waits."""
        return self.now - self.heard > self.timeout

    def sweep(self, now: float) -> None:
        """Once a second: give up requests silent for ``timeout`` s. A paused one waits for its client."""
        self.now = now
        late = self.timeout + 1.0  # a connection's clock is a second behind at most
        for connection in list(self.all):
            if connection.receiver is not None and not connection.waits and now - connection.last > late:
                connection.expire()

    def close(self) -> None:
        self.closed = True
        for connection in list(self.all):
            connection.drop()
