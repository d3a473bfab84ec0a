"""The fast way in: a whole ``POST`` of a captured format, with a plain head and a Content-Length, never meets
aiohttp's parser.

Everything else (chunked bodies, Expect, Upgrade, HTTP/1.0, ``Connection: close``, content codings, Origin, a Host
that is not served, other routes, anything malformed) goes to aiohttp with all of its bytes, and the connection stays
there (``listener.py``). Both ways end in the same ``Call``.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from slipstream_proxy.data.call.call import ActiveCall
from slipstream_proxy.data.wire.backpressure import LARGE_REPLY_BYTES, Rest, Rests, hung_up
from slipstream_proxy.data.wire.codings import unread
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.http1 import GUARD_LINES, LAST_CHUNK, STATUS_LINES, chunk, digits, status_line
from slipstream_proxy.data.wire.identity import Prefix, split_path
from slipstream_proxy.data.wire.request import MIN_RATE, RepeatedRequest, RequestHead, parse_fields
from slipstream_proxy.data.wire.sink import Sink
from slipstream_proxy.dialects import of_path
from slipstream_proxy.dialects.base import Dialect, openai_error

if TYPE_CHECKING:
    from slipstream.config import Config
    from slipstream_proxy.data.access.hosts import AllowedHosts
    from slipstream_proxy.data.call.services import Services

_LINE = re.compile(rb"POST (/[!-~]*) HTTP/1\.1\r\n")
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_LARGE_BYTES: Final = LARGE_REPLY_BYTES
_SLOW = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"content-encoding", b"origin"))
_PIPELINED: Final = 256 * 1024
"""Bytes that a client may send ahead while its call runs; then its socket is not read until the call ends."""

KEEPALIVE_TIMEOUT = 300.0
"""Seconds after which a connection without a request is closed."""

LINGER_S = 2.0
"""Seconds for which a refused client may go on sending. If it closed earlier, the client could not read why."""


class ServerState:
    """What a worker's connections share: limits in bytes, timeouts in seconds, and who is connected."""

    def __init__(self, config: Config, services: Services, hosts: AllowedHosts) -> None:
        proxy = config.proxy
        self.hosts = hosts
        self.services = services
        self.header_limit, self.body_limit = proxy.header_limit, proxy.body_limit
        self.header_timeout, self.client_timeout = proxy.header_timeout, proxy.client_timeout
        self.connections: set[ClientConnection] = set()
        """Those that aiohttp has not taken over."""
        self.silent: dict[ClientConnection, None] = {}
        """Those of them that have sent nothing yet, the oldest first."""
        self.rests = Rests(config.root)
        self.draining = False
        """The worker ends: a connection closes after the reply that it is at."""


def refusal(e: RequestRefused, dialect: Dialect | None = None) -> bytes:
    """A whole response, behind which the connection is closed."""
    body = (dialect.error if dialect else openai_error)(e.status, e.message, e.kind)
    lines = (
        b"content-type: application/json",
        *GUARD_LINES,
        *e.fields,
        b"content-length: %d" % len(body),
        b"connection: close",
    )
    return b"%b%b\r\n%b" % (status_line(e.status), b"".join([b"%b\r\n" % line for line in lines]), body)


class ClientConnection(Sink):
    """One client's connection, an ``asyncio.Protocol`` in all but its base class, and the ``Sink`` of its calls."""

    def __init__(self, state: ServerState, to_aiohttp: Callable[[], asyncio.Protocol]) -> None:
        """``to_aiohttp`` makes the protocol that takes over what is not for this one."""
        self._state, self._to_aiohttp = state, to_aiohttp
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._call: ActiveCall | None = None
        self._ahead = b""
        self._request: RequestHead | None = None
        self._known: RepeatedRequest | None = None
        self._pieces: list[bytes] = []
        self._have = self._need = 0
        self._since = 0.0
        self.idle_since = self._loop.time()
        self._silent = True
        self._served = True
        self._throttled = False
        self._discarding = False
        self._full = False
        self._closes = False
        """Behind ``_rest``."""
        self._rest: Rest | None = None

    # --- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._state.connections.add(self)
        self._state.silent[self] = None
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self._state.connections.discard(self)
        self._state.silent.pop(self, None)
        if self._rest is not None:
            self._state.rests.release(self._rest)
            self._rest = None
        call, self._call = self._call, None
        if call is not None:
            call.client_gone()

    def eof_received(self) -> None:
        """A client that sends no more is gone."""

    def pause_writing(self) -> None:
        self._full = True
        if self._call is not None:
            self._call.pause()

    def resume_writing(self) -> None:
        self._full = False
        if self._call is not None:
            self._call.resume()
        self._pour()

    @property
    def idle(self) -> bool:
        """Whether it waits for the next call's head, or for the rest of it."""
        return self._call is None and self._rest is None and self._request is None

    def abort(self) -> None:
        """Its place is needed."""
        self._state.connections.discard(self)
        self._state.silent.pop(self, None)
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def check(self, now: float, timeout: float) -> None:
        """Once a second: a head that does not end, or a body that stops or drips, costs a connection; and so does no
        request for long. A client that connects, and is kept from asking for a while, must not lose its first call.
        """
        busy = self._call is not None or self._rest is not None
        if self._since and now - self._since > timeout and not busy and self.transport is not None:
            self._since = 0.0
            self._turn_away(RequestRefused(408, "the request did not arrive in time"))
        elif self._throttled and self.transport is not None and hung_up(self.transport):
            self.transport.abort()
        elif self._served or busy or self._request is not None:
            self._served = False
            self.idle_since = now
        elif now - self.idle_since > KEEPALIVE_TIMEOUT:
            self.close()

    # --- the client's bytes -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._silent:
            self._silent = False
            self._state.silent.pop(self, None)
        if self._call is not None or self._rest is not None:
            self._ahead += data
            if len(self._ahead) > _PIPELINED and not self._throttled and self.transport is not None:
                self._throttled = True
                self.transport.pause_reading()
        elif self._discarding:
            return
        elif self._request is not None:
            self._body(data)
        else:
            self._head(self._ahead + data if self._ahead else data)

    def _head(self, data: bytes) -> None:
        known = self._known
        if known is not None and known.takes(data) and known.end <= self._state.header_limit:
            assert known.length is not None
            self._ahead = b""
            self._start(known.value, known.length, data, known.end)
            return
        end = data.find(b"\r\n\r\n")
        limit = self._state.header_limit
        if end < 0 or end > limit:
            if end < 0 and _BARE_LINE_FEED.search(data):
                self._turn_away(RequestRefused(400, "the request is malformed: a line of its head ends without CR"))
            elif not data.startswith(b"POST /"[: len(data)]):
                self._go_slow(data)
            elif end > limit or len(data) > limit:
                self._turn_away(RequestRefused(431, "the request's head is too large"))
            else:
                self._ahead = data
                self._since = self._since or self._loop.time()
            return
        self._ahead = b""
        start = data.find(b"\r\n") + 2
        read = _lines.get(data[:start]) or _read_line(data[:start])
        if read is None:
            self._go_slow(data)
            return
        prefix, dialect = read
        parsed = parse_fields(data[start : end + 2]) if dialect is not None else None
        if parsed is None or dialect is None:
            self._go_slow(data)
            return
        headers = parsed[0]
        refused = unread(headers.get(b"content-encoding", b"").decode("latin-1"))
        if refused is not None:
            self._turn_away(refused, dialect)
            return
        length = headers.get(b"content-length", b"")
        host = headers.get(b"host")
        usual = host is not None and self._state.hosts.serves(host) and _kept_alive(headers)
        if not usual or not length.isdigit() or not _SLOW.isdisjoint(headers):
            self._go_slow(data)
            return
        need = int(length.lstrip(b"0")[:16] or b"0")  # 16 digits are beyond every limit
        head = RequestHead(prefix, dialect, parsed)
        if len(length) < 16:
            self._known = RepeatedRequest(data[: end + 4], head)
        self._start(head, need, data, end + 4)

    def _start(self, head: RequestHead, need: int, data: bytes, end: int) -> None:
        """The head of a fast request is there; its body begins at ``end`` of ``data``."""
        limit = self._state.body_limit
        if need > limit:
            self._turn_away(RequestRefused(413, f"the request's body is larger than {limit} bytes"), head.dialect)
            return
        self._request, self._need, self._have, self._since = head, need, 0, 0.0
        self._body(data[end:])

    def _body(self, data: bytes) -> None:
        missing = self._need - self._have
        if len(data) < missing:
            self._pieces.append(data)
            self._have += len(data)
            now = self._loop.time()
            self._since = min(now, (self._since or now) + len(data) / MIN_RATE)
            return
        head = self._request
        assert head is not None
        if len(data) > missing:
            self._ahead = data[missing:]
            data = data[:missing]
        if self._pieces:
            self._pieces.append(data)
            data = b"".join(self._pieces)
            self._pieces = []
        self._since = 0.0
        self._request = None
        call = self._call = ActiveCall(self._state.services, head, data, self)
        call.begin()

    def _go_slow(self, data: bytes) -> None:
        """Aiohttp takes over, for good."""
        transport = self.transport
        if transport is None:
            return
        self._state.connections.discard(self)
        self.transport = None
        protocol = self._to_aiohttp()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def _turn_away(self, e: RequestRefused, dialect: Dialect | None = None) -> None:
        """Answer and close: what follows on this connection cannot be trusted to be a request."""
        self._state.services.metrics.refuse(e.status)
        transport = self.transport
        if transport is None:
            return
        self._discarding = True
        transport.write(refusal(e, dialect))
        transport.write_eof()
        self._loop.call_later(LINGER_S, transport.close)

    # --- the sink ---------------------------------------------------------------------------------------------------

    def send_whole(self, status: int, block: bytes, body: bytes, *, close: bool = False) -> None:
        transport = self.transport
        if transport is not None:
            close = close or self._state.draining
            start = STATUS_LINES.get(status) or status_line(status)
            last = b"connection: close\r\n\r\n" if close else b"\r\n"
            length = digits(len(body))
            if len(body) >= _LARGE_BYTES:
                transport.write(b"%b%bcontent-length: %b\r\n%b" % (start, block, length, last))
                self._call, self._closes = None, close  # the call holds the body, too
                self._rest = self._state.rests.hold(body)
                self._pour()
                return
            transport.write(b"%b%bcontent-length: %b\r\n%b%b" % (start, block, length, last, body))
            if close:
                self.break_off()
                return
        self._next()

    def _pour(self) -> None:
        """Hand out what a client has not taken yet, as far as it takes it."""
        rest, transport = self._rest, self.transport
        while rest is not None and transport is not None and not self._full:
            if piece := rest.take():
                transport.write(piece)
                continue
            self._state.rests.release(rest)
            rest = self._rest = None
            if self._closes:
                self.break_off()
            else:
                self._next()

    def send_head(self, status: int, block: bytes) -> None:
        if self.transport is not None:
            last = b"connection: close\r\n" if self._state.draining else b""
            head = b"%b%b%btransfer-encoding: chunked\r\n\r\n"
            self.transport.write(head % (status_line(status), block, last))

    def send_part(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(chunk(data))

    def send_end(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(chunk(data) + LAST_CHUNK if data else LAST_CHUNK)
            if self._state.draining:
                self.break_off()
                return
        self._next()

    def break_off(self) -> None:
        """No more requests on this connection."""
        self._call = None
        self._discarding = True
        self.close()

    def _next(self) -> None:
        """The call is over: go on with what its client sent ahead."""
        self._call = None
        self._served = True
        if self._throttled:
            self._throttled = False
            if self.transport is not None:
                self.transport.resume_reading()
        if self._ahead:
            self._loop.call_soon(self._take_ahead)

    def _take_ahead(self) -> None:
        if self.idle and self._ahead and self.transport is not None:
            data, self._ahead = self._ahead, b""
            self._head(data)


_lines: Final[dict[bytes, tuple[Prefix, Dialect | None]]] = {}
"""Request lines that were read before, but those that name an episode."""


def _read_line(line: bytes) -> tuple[Prefix, Dialect | None] | None:
    m = _LINE.fullmatch(line)
    if m is None:
        return None
    prefix = split_path(m[1].decode())
    read = prefix, of_path(prefix.path.partition("?")[0])
    if prefix.episode is None and len(_lines) < 256 and len(line) < 256:
        _lines[line] = read
    return read


def _kept_alive(headers: dict[bytes, bytes]) -> bool:
    value = headers.get(b"connection")
    return value is None or value.lower() == b"keep-alive"
