"""The fast way in: a whole ``POST`` of a captured format, with a plain head and a Content-Length, never meets aiohttp's parser.

Everything else (chunked bodies, Expect, Upgrade, HTTP/1.0, ``Connection: close``, content codings, other routes, anything malformed) goes
to aiohttp's own parser with all of its bytes, and the connection stays there. Both ways end in the same ``Call``.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from slipstream_proxy.data.exchange import Call
from slipstream_proxy.data.http1 import LAST_CHUNK, Known
from slipstream_proxy.data.identity import split_path
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.data.request import Head, parse_fields
from slipstream_proxy.dialects import BY_PATH
from slipstream_proxy.dialects.base import Dialect, openai_error

if TYPE_CHECKING:
    from slipstream_proxy.data.listener import Server
    from slipstream_proxy.data.plane import Plane

_LINE = re.compile(rb"POST (/[!-~]*) HTTP/1\.1\r\n")
_SLOW = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"content-encoding"))
_PIPELINED = 256 * 1024
"""Bytes that a client may send ahead while its call runs; then its socket is not read until the call ends."""

MIN_RATE = 1024.0
"""Bytes a second of a body, below which a client uses up its ``header_timeout``: one that drips must not hold a connection for ever."""

_LINGER = 2.0
"""Seconds in which a client may go on sending a body that is too large."""

REASONS = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}


def status_line(status: int) -> bytes:
    return REASONS.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


class Handler(RequestHandler):
    """One client connection, and the ``Sink`` of its fast calls."""

    __slots__ = (
        "_ahead",
        "_call",
        "_discarding",
        "_have",
        "_known",
        "_need",
        "_pieces",
        "_plane",
        "_request",
        "_since",
        "_slow",
        "_throttled",
    )

    def __init__(self, manager: Server, **kwargs: Any) -> None:
        super().__init__(manager, **kwargs)
        self._plane: Plane = manager.plane
        self._slow = False
        self._call: Call | None = None
        self._ahead = b""
        self._request: Head | None = None
        self._known: Known[Head] | None = None
        self._pieces: list[bytes] = []
        self._have = self._need = 0
        self._since = 0.0
        self._throttled = False
        self._discarding = False

    # --- the client's bytes -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._slow:
            if not self._discarding:
                self._slow_data(data)
        elif self._discarding:
            return
        elif self._call is not None:
            self._ahead += data
            if len(self._ahead) > _PIPELINED and not self._throttled and self.transport is not None:
                self._throttled = True
                self.transport.pause_reading()
        elif self._request is not None:
            self._body(data)
        else:
            self._head(self._ahead + data if self._ahead else data)

    def _head(self, data: bytes) -> None:
        known = self._known
        if known is not None and known.matches(data):
            assert known.length is not None
            self._ahead = b""
            self._start(known.value, known.length, data, known.end)
            return
        end = data.find(b"\r\n\r\n")
        limit = self._plane.config.proxy.header_limit
        if end < 0 or end > limit:
            if not data.startswith(b"POST /"[: len(data)]):
                self._go_slow(data)
            elif end > limit or len(data) > limit:
                self._turn_away(Refused(431, "the request's head is too large"))
            else:
                self._ahead = data
                self._since = self._since or self._loop.time()
            return
        self._ahead = b""
        line = _LINE.match(data)
        if line is None:
            self._go_slow(data)
            return
        prefix = split_path(line[1].decode())
        dialect = BY_PATH.get(prefix.path.partition("?")[0])
        parsed = parse_fields(data[line.end() : end + 2]) if dialect is not None else None
        if parsed is None or dialect is None:
            self._go_slow(data)
            return
        headers = parsed[0]
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or b"host" not in headers or not _SLOW.isdisjoint(headers) or not _kept_alive(headers):
            self._go_slow(data)
            return
        head, need = Head(prefix, dialect, parsed), int(length[:16])  # 16 digits are beyond every limit
        if len(length) < 16:
            self._known = Known(data[: end + 4], head)
        self._start(head, need, data, end + 4)

    def _start(self, head: Head, need: int, data: bytes, end: int) -> None:
        """The head of a fast request is there; its body begins at ``end`` of ``data``."""
        limit = self._plane.config.proxy.body_limit
        if need > limit:
            self._turn_away(Refused(413, f"the request's body is larger than {limit} bytes"), head.dialect)
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
        call = self._call = Call(self._plane, head, data, self)
        call.begin()

    def _go_slow(self, data: bytes) -> None:
        self._slow = True
        self._ahead = b""
        self._since = 0.0
        self._slow_data(data)

    def _slow_data(self, data: bytes) -> None:
        super().data_received(data)
        waiting = not self._messages and self._current_request is None and not self._request_in_progress
        self._since = (self._since or self._loop.time()) if waiting and not self._force_close else 0.0

    def _turn_away(self, e: Refused, dialect: Dialect | None = None) -> None:
        """Answer and close: what follows on this connection cannot be trusted to be a request."""
        self._plane.metrics.add("slipstream_requests_refused_total", f'status="{e.status}"')
        body = (dialect.error if dialect else openai_error)(e.status, e.message, e.kind)
        transport = self.transport
        if e.status != 413 or transport is None:
            block = b"".join([b"%b\r\n" % line for line in (b"content-type: application/json", *e.fields)])
            self.send_whole(e.status, block, body, close=True)
            return
        # Closing while the body still comes in would reset the connection before the client has read why.
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        transport.write(head % (status_line(413), len(body)) + body)
        self._discarding = True
        self._loop.call_later(_LINGER, transport.close)

    def check(self, now: float, timeout: float) -> None:
        """Once a second: a head that does not end, or a body that does not go on or only drips, costs its connection."""
        if self._since and now - self._since > timeout and self._call is None and self.transport is not None:
            self._since = 0.0
            self._turn_away(Refused(408, "the request did not arrive in time"))

    # --- the sink ---------------------------------------------------------------------------------------------------

    def send_whole(self, status: int, block: bytes, body: bytes, *, close: bool = False) -> None:
        transport = self.transport
        if transport is not None:
            close = close or self._plane.draining
            start, last = REASONS.get(status) or status_line(status), b"connection: close\r\n" if close else b""
            transport.write(b"%b%bcontent-length: %d\r\n%b\r\n%b" % (start, block, len(body), last, body))
            if close:
                self._close = True
                transport.close()
                return
        self._next()

    def send_head(self, status: int, block: bytes) -> None:
        if self.transport is not None:
            last = b"connection: close\r\n" if self._plane.draining else b""
            head = b"%b%b%btransfer-encoding: chunked\r\n\r\n"
            self.transport.write(head % (status_line(status), block, last))

    def send_part(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def send_end(self) -> None:
        if self.transport is not None:
            self.transport.write(LAST_CHUNK)
            if self._plane.draining:
                self.transport.close()
                return
        self._next()

    def break_off(self) -> None:
        self._call = None
        self._close = True
        if self.transport is not None:
            self.transport.close()

    def _next(self) -> None:
        """The call is over: go on with what its client sent ahead."""
        self._call = None
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._throttled:
            self._throttled = False
            if self.transport is not None:
                self.transport.resume_reading()
        if self._ahead:
            self._loop.call_soon(self._take_ahead)

    def _take_ahead(self) -> None:
        if (
            self._call is None
            and self._request is None
            and not self._slow
            and self._ahead
            and self.transport is not None
        ):
            data, self._ahead = self._ahead, b""
            self._head(data)

    # --- the connection ---------------------------------------------------------------------------------------------

    def connection_lost(self, exc: BaseException | None) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.client_gone()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._call is not None:
            self._call.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._call is not None:
            self._call.resume()

    def _process_keepalive(self) -> None:
        if self._call is not None or self._request is not None:
            self._keepalive_handle = self._loop.call_later(self._keepalive_timeout, self._process_keepalive)
            return
        super()._process_keepalive()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Aiohttp's parser refused the request: JSON like all our errors, and a closed connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the response is sent already")
        if isinstance(exc, LineTooLong):
            status = 431
        if status >= 500:
            self.log_exception("Error handling request", exc_info=exc)
        text = "the request is malformed" if status < 500 else "the proxy failed at this request"
        response = web.Response(
            status=status, body=openai_error(status, text, Refused(status, text).kind), content_type="application/json"
        )
        response.force_close()
        return response


def _kept_alive(headers: dict[bytes, bytes]) -> bool:
    value = headers.get(b"connection")
    return value is None or value.lower() == b"keep-alive"
