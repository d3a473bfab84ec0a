"""Accepts connections and looks after them once a second. aiohttp takes one over that sends what is its to read.

Not compiled: subclasses of aiohttp's classes cannot be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import BadHttpMessage, ContentEncodingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from slipstream_proxy.data.server.connection import KEEPALIVE_TIMEOUT, LINGER_S, ClientConnection, refusal
from slipstream_proxy.data.wire.backpressure import StalledClients
from slipstream_proxy.data.wire.codings import refused_coding
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.replies import WholeReply
from slipstream_proxy.dialects.base import openai_error

if TYPE_CHECKING:
    from slipstream_proxy.data.engines.pools import Pools
    from slipstream_proxy.data.server.connection import ServerState

log = logging.getLogger(__name__)


class Handler(RequestHandler):
    """A connection that aiohttp reads."""

    __slots__ = ("_body", "_last", "_since", "_size", "_state")

    def __init__(self, manager: Server, **kwargs: Any) -> None:
        super().__init__(manager, **kwargs)
        self._state: ServerState = manager.state
        self._since = 0.0
        self._size, self._last = 0, b""
        self._body: Any = None

    def data_received(self, data: bytes) -> None:
        if self._close or self._force_close:
            return
        body = self._body
        if (body is None or body.is_eof()) and self._head_size(data) > self._state.header_limit:
            self._turn_away(RequestRefused(431, "the request's head is too large"))
            return
        count = self._request_count
        super().data_received(data)
        if self._request_count != count:
            self._body = self._messages[-1][1]
            self._size, self._last = 0, b""
        self._since = (self._since or self._loop.time()) if self.idle and not self._force_close else 0.0

    def _head_size(self, data: bytes) -> int:
        """Bytes of the head so far. Aiohttp limits each line and their number, but not their sum."""
        if not self._size:
            data = data.lstrip(b"\r\n")
        text = self._last + data
        end = text.find(b"\r\n\r\n")
        self._size += len(data) if end < 0 else end - len(self._last)
        self._last = text[-3:]
        return self._size

    def _turn_away(self, e: RequestRefused) -> None:
        self._since = 0.0
        self._state.services.metrics.refuse(e.status)
        if self.transport is not None:
            self.transport.write(refusal(e))
            self._linger()

    def _linger(self) -> None:
        """Nothing more is sent or read. The client may send on for a while: a reset would hide the reason."""
        transport = self.transport
        self._close = True
        if transport is not None and not transport.is_closing():
            transport.write_eof()
            self._loop.call_later(LINGER_S, transport.close)

    def _make_error_handler(self, err_info: Any) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        answer = super()._make_error_handler(err_info)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            response = await answer(request)
            request._version = HttpVersion11  # aiohttp does not know which one the client meant
            await response.prepare(request)
            await response.write_eof()
            self._linger()
            await asyncio.sleep(LINGER_S)
            return response

        return handle

    @property
    def idle(self) -> bool:
        return not self._messages and self._current_request is None and not self._request_in_progress

    def abort(self) -> None:
        """Its place is needed."""
        if self.transport is not None:
            self.transport.abort()

    def check(self, now: float, timeout: float) -> None:
        """Once a second: a head that does not end costs its connection."""
        if self._since and now - self._since > timeout:
            self._turn_away(RequestRefused(408, "the request did not arrive in time"))

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """A body that cannot be read was answered (400): aiohttp reads on in it, and that is no failure of ours."""
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Aiohttp's parser refused the request: JSON like all our errors, and a closed connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the response is sent already")
        if isinstance(exc, LineTooLong) or (isinstance(exc, BadHttpMessage) and "Too many" in exc.message):
            status = 431
        if status >= 500:
            self.log_exception("Error handling request", exc_info=exc)
        text = "the request is malformed" if status < 500 else "internal error in the proxy"
        if isinstance(exc, ContentEncodingError):
            refused = refused_coding()
            status, text = refused.status, refused.message
        response = WholeReply(
            status=status,
            body=openai_error(status, text, RequestRefused(status, text).kind),
            content_type="application/json",
        )
        response.force_close()
        return response


class Server(web.Server):
    """Makes a ``ClientConnection`` for each connection, and a ``Handler`` of those that are aiohttp's to read."""

    def __init__(self, state: ServerState, handler: Any, **kwargs: Any) -> None:
        super().__init__(handler, keepalive_timeout=KEEPALIVE_TIMEOUT, **kwargs)
        self.state = state
        self.stalled = StalledClients(state.client_timeout)

    def __call__(self) -> Any:
        return ClientConnection(self.state, self._handler)

    def _handler(self) -> Handler:
        return Handler(self, loop=self._loop, **self._kwargs)

    @property
    def connected(self) -> int:
        return len(self.state.connections) + len(self.connections)

    def longest_idle(self) -> ClientConnection | Handler | None:
        """Of the connections without a call. Those that wait between two calls go before those of aiohttp's."""
        mine = min((c for c in self.state.connections if c.idle), key=lambda c: c.idle_since, default=None)
        return mine or next((c for c in self.connections if isinstance(c, Handler) and c.idle), None)

    def check(self, now: float) -> None:
        self.state.rests.check(now)
        timeout = self.state.header_timeout
        for client in list(self.state.connections):
            client.check(now, timeout)
        for connection in self.connections:
            if isinstance(connection, Handler):
                connection.check(now, timeout)
        transports = (*(c.transport for c in self.state.connections), *(c.transport for c in self.connections))
        for transport in self.stalled.ended(transports, now):
            log.warning("a client took nothing for %.0f s: its connection is ended", self.stalled.timeout)
            transport.abort()

    async def shutdown(self, timeout: float | None = None) -> None:
        for client in list(self.state.connections):
            client.close()
        await super().shutdown(timeout)


async def sweep(server: Server, pools: Pools) -> None:
    """Each second: timeouts, and how late this very loop runs."""
    services = server.state.services
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 1.0
        await asyncio.sleep(1.0)
        now = loop.time()
        metrics = services.metrics
        metrics.set("slipstream_event_loop_lag_seconds", max(0.0, now - due))
        metrics.set("slipstream_connections", server.connected)
        metrics.set("slipstream_in_flight", len(services.in_flight))
        metrics.set("slipstream_queued", sum(call.reply.first is None for call in services.in_flight))
        server.check(now)
        pools.sweep(now)
