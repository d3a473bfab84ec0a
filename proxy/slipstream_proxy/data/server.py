"""aiohttp's own way through the proxy: unusual requests of captured formats, other routes, the control plane's routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

from slipstream_proxy.data.body import read_body
from slipstream_proxy.data.control_forward import check_origin, forward_to_control, is_control
from slipstream_proxy.data.exchange import Call
from slipstream_proxy.data.forwarding import Streamed, Whole
from slipstream_proxy.data.health import answer_health
from slipstream_proxy.data.identity import Prefix, split_path
from slipstream_proxy.data.listener import Server
from slipstream_proxy.data.metrics_text import passed_label
from slipstream_proxy.data.passthrough import list_models, pass_preflight, pass_through
from slipstream_proxy.data.paths import MODELS, decoded, methods, passed
from slipstream_proxy.data.queued import ABORT, END, QueueSink
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.data.request import Head, forwardable
from slipstream_proxy.dialects import BY_PATH
from slipstream_proxy.dialects.base import Dialect, openai_error

if TYPE_CHECKING:
    from slipstream_proxy.data.plane import Plane

log = logging.getLogger(__name__)


def header_map(fields: list[bytes]) -> CIMultiDict[str]:
    found: CIMultiDict[str] = CIMultiDict()
    for line in fields:
        name, _, value = line.partition(b":")
        found.add(name.decode("latin-1"), value.strip().decode("latin-1"))
    return found


async def captured(plane: Plane, request: web.BaseRequest, prefix: Prefix, dialect: Dialect) -> web.StreamResponse:
    """A call of a captured format. The relay is the fast path's; only reading and writing differ."""
    body = await read_body(request, plane.config.proxy.body_limit, plane.config.proxy.header_timeout)
    head = Head(prefix, dialect, forwardable(list(request.raw_headers)))
    sink = QueueSink()
    call = sink.call = Call(plane, head, body, sink)
    try:
        call.begin()
        status, block, whole, close = await sink.head()
        headers = header_map(block.split(b"\r\n")[:-1])
        if whole is not None:
            response = Whole(status=status, headers=headers, body=whole)
            if close or plane.draining:
                response.force_close()
            return response
        stream = Streamed(status=status, headers=headers)
        if request.version >= (1, 1):
            stream.enable_chunked_encoding()
        if plane.draining or request.version < (1, 1):
            stream.force_close()  # how else would HTTP/1.0 know where the stream ends
        await stream.prepare(request)
        while (item := await sink.take()) is not END:
            if item is ABORT:
                if request.transport is not None:
                    request.transport.close()
                return stream
            assert isinstance(item, bytes)
            await stream.write(item)
        await stream.write_eof()
        return stream
    except (asyncio.CancelledError, ConnectionError):
        call.client_gone()
        raise


def error_response(e: Refused, dialect: Dialect | None = None) -> web.Response:
    body = (dialect.error if dialect else openai_error)(e.status, e.message, e.kind, e.param)
    response = Whole(status=e.status, headers=header_map([b"content-type: application/json", *e.fields]), body=body)
    if e.status in (408, 413):
        response.force_close()  # what is left of the body would be read as a request
    return response


async def _inference(plane: Plane, request: web.BaseRequest, prefix: Prefix, path: str) -> web.StreamResponse:
    """``path`` is the prefix's, decoded."""
    query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
    method, dialect = request.method, BY_PATH.get(path)
    if dialect is not None and method == "POST":
        return await captured(plane, request, Prefix(path + query, prefix.episode, prefix.task), dialect)
    if path == MODELS and method == "GET":
        return await list_models(plane, request)
    full = Prefix(prefix.path + query, prefix.episode, prefix.task)
    if method in passed(path):
        reply = await pass_through(plane, request, full)
        plane.metrics.add("slipstream_passed_requests_total", passed_label(path, reply.status))
        return reply
    allowed = methods(path)
    if allowed and method == "OPTIONS" and {"Origin", "Access-Control-Request-Method"} <= request.headers.keys():
        return await pass_preflight(plane, request, full)
    if allowed:
        return _detail(405, "Method Not Allowed", {"allow": ", ".join(allowed)})
    if path.endswith("/") and methods(path[:-1]):
        return Whole(status=307, headers={"location": request.rel_url.raw_path[:-1] + query})
    return _detail(404, "Not Found", {})


def _detail(status: int, text: str, headers: dict[str, str]) -> web.Response:
    """As vLLM says it."""
    return Whole(
        status=status, headers=headers, body=b'{"detail":"%b"}' % text.encode(), content_type="application/json"
    )


def make_handler(plane: Plane) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """The low-level server's one handler."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.version >= (1, 1) and request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        coded = request.headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked"
        if coded or request.version < (1, 0):
            refused = error_response(
                Refused(400, "a transfer coding other than chunked" if coded else "this is no HTTP/1")
            )
            refused.force_close()
            return refused
        target = request.rel_url.raw_path
        dialect = None
        try:
            if (health := await answer_health(plane, request, target)) is not None:
                return health
            if is_control(target):
                return await forward_to_control(plane, request)
            prefix = split_path(target)
            path = decoded(prefix.path)
            dialect = BY_PATH.get(path) or (BY_PATH["/v1/messages"] if path.startswith("/v1/messages/") else None)
            check_origin(plane, request)
            return await _inference(plane, request, prefix, path)
        except Refused as e:
            plane.metrics.add("slipstream_requests_refused_total", f'status="{e.status}"')
            return error_response(e, dialect)

    return handle


def make_server(plane: Plane) -> Server:
    proxy = plane.config.proxy
    return Server(
        plane,
        make_handler(plane),
        access_log=None,
        handler_cancellation=True,
        lingering_time=2.0,
        max_line_size=proxy.header_limit,
        max_field_size=proxy.header_limit,
        max_headers=proxy.header_limit // 4,
        read_bufsize=256 * 1024,
    )
