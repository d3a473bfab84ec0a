"""Inference routes that are relayed without being captured (``paths.py`` says which)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from slipstream_proxy.data.body import body_parts, read_body
from slipstream_proxy.data.forms import find_model
from slipstream_proxy.data.forwarding import Whole, end_to_end, first_fields, hand_on
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.data.request import forwardable
from slipstream_proxy.dialects.base import dumps, loads

if TYPE_CHECKING:
    from slipstream_proxy.data.identity import Prefix
    from slipstream_proxy.data.plane import Plane

_IDLE = 3.0
"""Seconds for which a connection to an engine is kept: less than those after which an engine closes it (5 with uvicorn)."""

_ONE_ENGINES = re.compile(r"/v1/(?:responses|files|batches)/")
"""What one engine has made and the others do not know."""


def _headers(plane: Plane, request: web.BaseRequest) -> CIMultiDict[str]:
    _, _, lines = forwardable(list(request.raw_headers))
    found: CIMultiDict[str] = CIMultiDict()
    for line in lines:
        name, _, value = line.partition(b": ")
        found.add(name.decode("latin-1"), value.decode("latin-1").removesuffix("\r\n"))
    if plane.config.engine.api_key:
        found["Authorization"] = f"Bearer {plane.config.engine.api_key}"
    return found


def _engines(plane: Plane) -> list[str]:
    """Those that are up first."""
    servers = plane.live.servers(plane.routes.default, "")
    if not servers:
        raise Refused(503, "no engine is configured", retry_after=1.0)
    return servers


def _session(plane: Plane) -> aiohttp.ClientSession:
    if plane.session is None:
        proxy = plane.config.proxy
        plane.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=proxy.connect_timeout, sock_read=proxy.upstream_timeout
            ),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
    return plane.session


async def _mapped(plane: Plane, request: web.BaseRequest) -> tuple[Any, tuple[bytes, bytes] | None]:
    """The body with the engine's model name, and (engine's, client's) name as JSON. What has no such name goes on as it comes."""
    limit, timeout = plane.config.proxy.body_limit, plane.config.proxy.header_timeout
    if not request.can_read_body:
        return None, None
    kind = request.headers.get("Content-Type", "")
    if kind.lower().startswith("multipart/form-data") and plane.config.models:
        return _mapped_form(plane, await read_body(request, limit, timeout), kind)
    if "json" not in kind.lower():
        return body_parts(request, limit, timeout), None
    body = await read_body(request, limit, timeout)
    try:
        read = loads(body)
    except ValueError:
        return body, None
    if not isinstance(read, dict) or not isinstance(read.get("model"), str):
        return body, None
    asked = read["model"]
    model = _engines_name(plane, asked)
    if model == asked:
        return body, None
    read["model"] = model
    return dumps(read), (dumps(model), dumps(asked))


def _mapped_form(plane: Plane, body: bytes, kind: str) -> tuple[bytes, tuple[bytes, bytes] | None]:
    found = find_model(body, kind)
    if found is None:
        return body, None
    start, end = found
    asked = body[start:end].decode("utf-8", "replace")
    model = _engines_name(plane, asked)
    if model == asked:
        return body, None
    return body[:start] + model.encode() + body[end:], (dumps(model), dumps(asked))


def _engines_name(plane: Plane, asked: str) -> str:
    route = plane.routes.of(asked)
    if route.kind == "upstream":
        message = f"model {asked!r} is an external upstream, which serves the captured routes only"
        raise Refused(404, message, param="model")
    live = plane.live.models.get(route.model) if route.kind == "trained" else None
    return live.base if live is not None else route.model


async def pass_through(plane: Plane, request: web.BaseRequest, prefix: Prefix) -> web.StreamResponse:
    key, _ = plane.admission.who(first_fields(request))
    plane.admission.enter(key)
    try:
        if request.method == "POST":
            await plane.holding.over()
        data, names = await _mapped(plane, request)
        reply = await _ask_any(plane, request, prefix.path, data)
        async with reply:
            return await _relay(request, reply, names)
    finally:
        plane.admission.leave(key)


async def pass_preflight(plane: Plane, request: web.BaseRequest, prefix: Prefix) -> web.StreamResponse:
    """A browser asks, without a key, whether a page may send something: the engine knows which pages may."""
    async with await _ask_any(plane, request, prefix.path, None) as reply:
        return await _relay(request, reply, None)


async def _ask_any(plane: Plane, request: web.BaseRequest, path: str, data: Any) -> aiohttp.ClientResponse:
    """The first engine that answers, and knows what is asked for; a body that is streamed goes to one only."""
    engines = _engines(plane)
    while True:
        url = engines.pop(0)
        last = not engines or not (data is None or isinstance(data, bytes))
        try:
            reply = await _ask(plane, request, url + path, data)
        except Refused as e:
            if e.status == 503:
                plane.live.mark_down(url)
            if last or e.status != 503:
                raise
            continue
        if last or reply.status != 404 or not _ONE_ENGINES.match(path):
            return reply
        reply.release()


async def _ask(plane: Plane, request: web.BaseRequest, url: str, data: Any) -> aiohttp.ClientResponse:
    """Once more where a kept connection was closed by the engine just then, and the body is at hand."""
    for again in (data is None or isinstance(data, bytes), False):
        try:
            return await _session(plane).request(
                request.method,
                URL(url, encoded=True),
                headers=_headers(plane, request),
                data=data,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            if again and isinstance(e, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError):
                continue
            if isinstance(e.__cause__, Refused):
                raise e.__cause__ from None  # the client's body, and not the engine
            status = 504 if isinstance(e, aiohttp.SocketTimeoutError) else 503
            raise Refused(status, f"the model's server cannot answer: {type(e).__name__}", retry_after=1.0) from e
    raise AssertionError("unreachable")


async def _relay(
    request: web.BaseRequest, reply: aiohttp.ClientResponse, names: tuple[bytes, bytes] | None
) -> web.StreamResponse:
    headers = end_to_end(reply.headers)
    if not 200 <= reply.status < 600:
        raise Refused(502, f"the model's server answers with the status {reply.status}", retry_after=1.0)
    if names is not None or reply.content_length is not None:
        try:
            body = await reply.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise Refused(502, f"the model's server broke off: {type(e).__name__}", retry_after=1.0) from e
        if names is not None:
            body = _renamed(body, *names, everywhere=reply.status >= 400)
        return Whole(status=reply.status, headers=headers, body=body)
    return await hand_on(request, reply)


def _renamed(body: bytes, engines: bytes, clients: bytes, *, everywhere: bool) -> bytes:
    """``everywhere``: an error names the model in its message."""
    if everywhere:
        return body.replace(engines[1:-1], clients[1:-1])
    return body.replace(b'"model":' + engines, b'"model":' + clients, 1).replace(
        b'"model": ' + engines, b'"model": ' + clients, 1
    )


async def list_models(plane: Plane, request: web.BaseRequest) -> web.Response:
    """The names that clients may use, as copies of the base model's card."""
    key, _ = plane.admission.who(first_fields(request))
    plane.admission.enter(key)
    try:
        async with await _ask_any(plane, request, "/v1/models", None) as reply:
            body = await reply.read()
            headers = end_to_end(reply.headers)
            if reply.status != 200:
                return Whole(status=reply.status, headers=headers, body=body)
            read = loads(body)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
        raise Refused(503, f"the model's server cannot answer: {type(e).__name__}", retry_after=1.0) from e
    finally:
        plane.admission.leave(key)
    bases = {m.base for m in plane.live.models.values()}
    card = next((c for c in read.get("data", ()) if c.get("id") in bases), None) or {
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
    }
    read["data"] = [{**card, "id": name} for name in plane.routes.names()]
    return Whole(status=200, headers=headers, body=dumps(read))
