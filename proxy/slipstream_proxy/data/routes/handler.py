"""aiohttp's way through the proxy: unusual requests of captured formats, other routes, the control plane's routes."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

from slipstream.shared.tenant_names import names_tenant
from slipstream_proxy.data.call.call import ActiveCall
from slipstream_proxy.data.observe.exposition import passed_label
from slipstream_proxy.data.routes.body import read_body
from slipstream_proxy.data.routes.control import control_refusal, is_control
from slipstream_proxy.data.routes.paths import MODELS_PATH, decoded, hint, methods, passed
from slipstream_proxy.data.wire.backpressure import LARGE_REPLY_BYTES, Rest
from slipstream_proxy.data.wire.codings import unread
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.identity import Prefix, split_path
from slipstream_proxy.data.wire.replies import StreamedReply, WholeReply, header_map
from slipstream_proxy.data.wire.request import RequestHead, forwardable
from slipstream_proxy.data.wire.sink import ABORT_MARK, END_MARK, QueueSink
from slipstream_proxy.dialects import BY_PATH, of_path
from slipstream_proxy.dialects.base import Dialect, openai_error

if TYPE_CHECKING:
    from slipstream_proxy.data.access.hosts import AllowedHosts
    from slipstream_proxy.data.routes.control import ControlRoutes
    from slipstream_proxy.data.routes.health import HealthRoutes
    from slipstream_proxy.data.routes.passthrough import Passthrough
    from slipstream_proxy.data.server.connection import ServerState

log = logging.getLogger(__name__)

_MESSAGES: Final = re.compile(r"^/v1/messages/|/messages$")
"""Routes whose clients read Anthropic's errors, wrong ones included."""


def error_response(e: RequestRefused, dialect: Dialect | None = None) -> web.Response:
    body = (dialect.error if dialect else openai_error)(e.status, e.message, e.kind, e.param)
    response = WholeReply(
        status=e.status, headers=header_map([b"content-type: application/json", *e.fields]), body=body
    )
    if e.status in (408, 413):
        response.force_close()  # what is left of the body would be read as a request
    return response


class TenantRoutes(Protocol):
    """Finds the routes of the tenant whose a request is. They raise ``RequestRefused``."""

    def control(self, request: web.BaseRequest) -> ControlRoutes: ...
    def passthrough(self, request: web.BaseRequest) -> Passthrough: ...
    async def metrics(self, request: web.BaseRequest) -> Mapping[str, tuple[str, ...]]: ...


class RequestHandler:
    """The low-level server's one handler: it finds a request's route."""

    def __init__(
        self,
        state: ServerState,
        *,
        health: HealthRoutes,
        control: ControlRoutes,
        passthrough: Passthrough,
        hosts: AllowedHosts,
        tenants: TenantRoutes | None = None,
    ) -> None:
        """``tenants`` None: there is one folder, and all requests are its own."""
        self._state, self._tenants = state, tenants
        self._health, self._control, self._passthrough, self._hosts = health, control, passthrough, hosts

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.version >= (1, 1) and request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        coded = request.headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked"
        if coded or request.version < (1, 0):
            message = "a transfer coding other than chunked" if coded else "this is no HTTP/1"
            refused = error_response(RequestRefused(400, message))
            refused.force_close()
            return refused
        target = request.rel_url.raw_path
        dialect = None
        try:
            if (health := await self._health.answer(request, target)) is not None:
                return health
            if is_control(target):
                try:
                    control = self._control_of(request)
                except RequestRefused as e:
                    return control_refusal(e)
                return await control.forward(request)
            prefix = split_path(target)
            path = decoded(prefix.path)
            dialect = of_path(path) or (BY_PATH["/v1/messages"] if _MESSAGES.search(path) else None)
            self._hosts.check(request)
            if (unknown := unread(request.headers.get("content-encoding", ""))) is not None:
                raise unknown
            return await self._inference(request, prefix, path)
        except RequestRefused as e:
            self._state.services.metrics.refuse(e.status)
            return error_response(e, dialect)

    def _control_of(self, request: web.BaseRequest) -> ControlRoutes:
        return self._control if self._tenants is None else self._tenants.control(request)

    def _passthrough_of(self, request: web.BaseRequest) -> Passthrough:
        return self._passthrough if self._tenants is None else self._tenants.passthrough(request)

    async def _inference(self, request: web.BaseRequest, prefix: Prefix, path: str) -> web.StreamResponse:
        """``path`` is the prefix's, decoded."""
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        method, dialect = request.method, of_path(path)
        if dialect is not None and method == "POST":
            return await self._captured(request, Prefix(path + query, prefix.episode, prefix.task), dialect)
        if path == MODELS_PATH and method == "GET":
            return await self._passthrough_of(request).list_models(request)
        full = Prefix(prefix.path + query, prefix.episode, prefix.task)
        if method in passed(path):
            if names_tenant(path):
                raise RequestRefused(404, f"there is no {path}")
            reply = await self._passthrough_of(request).pass_through(request, full)
            self._state.services.metrics.add("slipstream_passed_requests_total", passed_label(path, reply.status))
            return reply
        allowed = methods(path)
        if allowed and method == "OPTIONS" and {"Origin", "Access-Control-Request-Method"} <= request.headers.keys():
            return await self._passthrough.pass_preflight(request, full)
        if allowed:
            return _detail(405, "Method Not Allowed", {"allow": ", ".join(allowed)})
        if path.endswith("/") and methods(path[:-1]):
            return WholeReply(status=307, headers={"location": request.rel_url.raw_path[:-1] + query})
        fix = hint(path)
        if fix is not None:
            raise RequestRefused(404, f"there is no {path}: {fix}")
        return _detail(404, "Not Found", {})

    async def _captured(self, request: web.BaseRequest, prefix: Prefix, dialect: Dialect) -> web.StreamResponse:
        """A call of a captured format. The relay is the fast path's; only reading and writing differ."""
        body = await read_body(request, self._state.body_limit, self._state.header_timeout)
        head = RequestHead(prefix, dialect, forwardable(list(request.raw_headers)))
        sink = QueueSink()
        call: ActiveCall | None
        call = sink.call = ActiveCall(self._state.services, head, body, sink)
        try:
            call.begin()
            status, block, whole, close = await sink.head()
            headers = header_map(block.split(b"\r\n")[:-1])
            if whole is not None and len(whole) < LARGE_REPLY_BYTES:
                response = WholeReply(status=status, headers=headers, body=whole)
                if close or self._state.draining:
                    response.force_close()
                return response
            if whole is not None:
                rest, size = self._state.rests.hold(whole), len(whole)
                sink.reply = sink.call = whole = call = None  # each of them holds the body
                return await self._hand_out(request, StreamedReply(status=status, headers=headers), rest, size, close)
            stream = StreamedReply(status=status, headers=headers)
            if request.version >= (1, 1):
                stream.enable_chunked_encoding()
            if self._state.draining or request.version < (1, 1):
                stream.force_close()  # how else would HTTP/1.0 know where the stream ends
            await stream.prepare(request)
            while (item := await sink.take()) is not END_MARK:
                if item is ABORT_MARK:
                    if request.transport is not None:
                        request.transport.close()
                    return stream
                assert isinstance(item, bytes)
                await stream.write(item)
            await stream.write_eof()
            return stream
        except (asyncio.CancelledError, ConnectionError):
            if call is not None:
                call.client_gone()
            raise
        finally:
            sink.call = None  # they hold each other, and with them two bodies; a worker looks for such pairs seldom

    async def _hand_out(
        self, request: web.BaseRequest, response: StreamedReply, rest: Rest, size: int, close: bool
    ) -> web.StreamResponse:
        """A large reply, as its client takes it."""
        try:
            response.content_length = size
            if close or self._state.draining:
                response.force_close()
            await response.prepare(request)
            while piece := rest.take():
                await response.write(piece)
            await response.write_eof()
            return response
        finally:
            self._state.rests.release(rest)


def _detail(status: int, text: str, headers: dict[str, str]) -> web.Response:
    """As vLLM says it."""
    return WholeReply(
        status=status, headers=headers, body=b'{"detail":"%b"}' % text.encode(), content_type="application/json"
    )
