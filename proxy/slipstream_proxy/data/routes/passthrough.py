"""Inference routes that are relayed without being captured (``paths.py`` says which)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from slipstream.shared.tenant_names import engine_name
from slipstream_proxy.data.call.call import UNREADABLE_TEXT, keep_apart
from slipstream_proxy.data.routes.body import body_parts, read_body
from slipstream_proxy.data.routes.form import find_model, names_others
from slipstream_proxy.data.routes.paths import decoded
from slipstream_proxy.data.wire import upstream
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.replies import WholeReply, first_fields, from_engine, hand_on, header_map, parts_of
from slipstream_proxy.data.wire.request import forwardable
from slipstream_proxy.dialects.base import dumps, loads
from slipstream_proxy.parse_weight import too_heavy

if TYPE_CHECKING:
    from slipstream.config import Config
    from slipstream_proxy.data.access.admission import Admission
    from slipstream_proxy.data.call.services import Services
    from slipstream_proxy.data.engines.hold import Holding
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.engines.models import ModelMap
    from slipstream_proxy.data.wire.identity import Prefix

Names = tuple[bytes, bytes]
"""The engine's and the client's name of a model, as JSON."""

Data = bytes | AsyncIterator[bytes] | None
"""A body, whole or as it comes."""

_IDLE = 3.0
"""Seconds for which a connection to an engine is kept. An engine closes it later than that (uvicorn: 5)."""

_WHOLE = 16 * 2**20
"""Bytes of a reply that is kept until it is there whole. A larger one goes on as it comes."""

_ONE_ENGINES = re.compile(r"/v1/(?:responses|files|batches)/")
"""What one engine has made and the others do not know."""

_KEPT_BY_ENGINE = re.compile(
    r"/v1/(?:responses/|chat/completions/|conversations|files|batches|uploads|threads|vector_stores)"
)
KEPT_FOR_ALL_TEXT = (
    "the engine shares files, batches and stored replies among all tenants, so these routes are off: send the whole "
    "conversation in each call"
)


class Passthrough:
    """Relays requests to an engine that is up."""

    def __init__(
        self,
        config: Config,
        admission: Admission,
        models: ModelMap,
        live: LiveView,
        holding: Holding,
        memory: upstream.ReplyMemory,
        services: Services,
    ) -> None:
        """``memory``: what the replies that are kept until they are whole share with those of captured calls."""
        self._memory, self._services = memory, services
        self._config, self._admission, self._models, self._live, self._holding = (
            config,
            admission,
            models,
            live,
            holding,
        )
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _headers(self, request: web.BaseRequest, url: str) -> CIMultiDict[str]:
        _, _, lines = forwardable(list(request.raw_headers))
        found = header_map(lines)
        for name, value in self._config.engine.headers(url).items():
            found[name] = value
        return found

    def _engines(self) -> list[str]:
        """Those that are up first."""
        servers = self._live.servers(self._models.default, "")
        if not servers:
            raise RequestRefused(503, "no engine is up at the moment", retry_after=1.0)
        return servers

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            proxy = self._config.proxy
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=proxy.connect_timeout, sock_read=proxy.upstream_timeout
                ),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._client

    async def _mapped(self, request: web.BaseRequest) -> tuple[Data, Names | None]:
        """The body with the engine's model name, and (engine's, client's) name as JSON. Without a name: unchanged."""
        limit, timeout = self._config.proxy.body_limit, self._config.proxy.header_timeout
        if not request.can_read_body:
            return None, None
        kind = request.headers.get("Content-Type", "")
        if kind.lower().startswith("multipart/form-data") and (self._config.models or self._guarded()):
            form = await read_body(request, limit, timeout)
            if self._guarded() and names_others(form, kind, self._live.models):
                raise RequestRefused(400, "the form names a tenant's version, or has a charset", param="model")
            return self._mapped_form(form, kind)
        if "json" not in kind.lower():
            if self._guarded():
                raise RequestRefused(415, "the content type is neither JSON nor a form", param="content-type")
            return body_parts(request, limit, timeout), None
        body = await read_body(request, limit, timeout)
        heavy, read = too_heavy(body), None
        if not heavy:
            with contextlib.suppress(ValueError, RecursionError):
                read = loads(body)
        if not isinstance(read, dict) or not isinstance(read.get("model"), str):
            if self._guarded() and (heavy or not isinstance(read, dict)):
                raise RequestRefused(400, UNREADABLE_TEXT)
            return body, None
        asked = read["model"]
        model = self._engines_name(asked)
        if self._guarded():
            keep_apart(read, self._config.tenant, self._live.kind)
        elif model == asked:
            return body, None
        read["model"] = model
        return dumps(read), (dumps(model), dumps(asked))

    def _guarded(self) -> bool:
        """Whether other tenants' adapters are there, which a body that is not read might name."""
        return self._services.has_tenants

    def _mapped_form(self, body: bytes, kind: str) -> tuple[bytes, Names | None]:
        found = find_model(body, kind)
        if found is None:
            return body, None
        start, end = found
        asked = body[start:end].decode("utf-8", "replace")
        model = self._engines_name(asked)
        if model == asked:
            return body, None
        return body[:start] + model.encode() + body[end:], (dumps(model), dumps(asked))

    def _engines_name(self, asked: str) -> str:
        route = self._models.of(asked)
        if route.kind == "upstream":
            message = f"model {asked!r} is an external upstream, which serves the captured routes only"
            raise RequestRefused(404, message, param="model")
        live = self._live.models.get(route.model) if route.kind == "trained" else None
        return live.base if live is not None else engine_name(route.model, self._config.tenant)

    async def pass_through(self, request: web.BaseRequest, prefix: Prefix) -> web.StreamResponse:
        key, _ = self._admission.who(first_fields(request))
        if self._guarded() and _KEPT_BY_ENGINE.match(decoded(prefix.path)):
            raise RequestRefused(404, KEPT_FOR_ALL_TEXT)
        self._admission.enter(key)
        quotas = self._services.quotas if request.method == "POST" else None
        try:
            counted = await quotas.enter() if quotas is not None else None
        except RequestRefused:
            self._admission.leave(key)
            raise
        try:
            if request.method == "POST":
                await self._holding.over()
            data, names = await self._mapped(request)
            reply = await self._ask_any(request, prefix.path, data)
            async with reply:
                return await self._relay(request, reply, names)
        finally:
            self._admission.leave(key)
            if counted is not None:
                counted.leave()

    async def pass_preflight(self, request: web.BaseRequest, prefix: Prefix) -> web.StreamResponse:
        """A browser asks, without a key, whether a page may send something: the engine knows which pages may."""
        async with await self._ask_any(request, prefix.path, None) as reply:
            return await self._relay(request, reply, None)

    async def _ask_any(self, request: web.BaseRequest, path: str, data: Data) -> aiohttp.ClientResponse:
        """The first engine that answers, and knows what is asked for; a body that is streamed goes to one only."""
        engines = self._engines()
        while True:
            url = engines.pop(0)
            last = not engines or not (data is None or isinstance(data, bytes))
            try:
                reply = await self._ask_in_turn(request, url, path, data)
            except RequestRefused as e:
                if e.status == 503:
                    self._live.mark_down(url)
                if last or e.status != 503:
                    raise
                continue
            if 300 <= reply.status < 400:
                reply.close()
                raise RequestRefused(502, f"the model's server cannot answer: {upstream.redirected(reply.status)}")
            if last or reply.status != 404 or not _ONE_ENGINES.match(path):
                return reply
            reply.release()

    async def _ask_in_turn(self, request: web.BaseRequest, url: str, path: str, data: Data) -> aiohttp.ClientResponse:
        """An engine whose calls hung gets one ``POST`` at a time. Answers here clear nothing: a model may hang."""
        who = f"relayed {id(request)}"
        if request.method == "POST":
            self._live.try_out(url, who)
        try:
            return await self._ask(request, url + path, data)
        finally:
            self._live.release(url, who)

    async def _ask(self, request: web.BaseRequest, url: str, data: Data) -> aiohttp.ClientResponse:
        """Once more where a kept connection was closed by the engine just then, and the body is at hand."""
        # an engine that sends one 1xx head after the other is never silent; a client's upload may take its time
        head_timeout = self._config.proxy.upstream_timeout if data is None or isinstance(data, bytes) else None
        for again in (data is None or isinstance(data, bytes), False):
            try:
                async with asyncio.timeout(head_timeout):
                    return await self._session().request(
                        request.method,
                        URL(url, encoded=True),
                        headers=self._headers(request, url),
                        data=data,
                        allow_redirects=False,
                    )
            except (aiohttp.ClientError, OSError, TimeoutError) as e:
                if again and isinstance(e, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError):
                    continue
                if isinstance(e.__cause__, RequestRefused):
                    raise e.__cause__ from None  # the client's body, and not the engine
                status = 504 if isinstance(e, aiohttp.SocketTimeoutError) or type(e) is TimeoutError else 503
                raise RequestRefused(
                    status, f"the model's server cannot answer: {type(e).__name__}", retry_after=1.0
                ) from e
        raise AssertionError("unreachable")

    async def list_models(self, request: web.BaseRequest) -> web.Response:
        """The names that clients may use, as copies of the base model's card."""
        key, _ = self._admission.who(first_fields(request))
        self._admission.enter(key)
        try:
            async with await self._ask_any(request, "/v1/models", None) as reply:
                body = await self._whole(reply)
                headers = from_engine(reply.headers)
                if reply.status != 200:
                    return WholeReply(status=reply.status, headers=headers, body=body)
                read = loads(body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            raise RequestRefused(503, f"the model's server cannot answer: {type(e).__name__}", retry_after=1.0) from e
        finally:
            self._admission.leave(key)
        bases = {m.base for m in self._live.models.values()}
        card = next((c for c in read.get("data", ()) if c.get("id") in bases), None) or {
            "object": "model",
            "created": 0,
            "owned_by": self._live.kind,
        }
        read["data"] = [{**card, "id": name} for name in self._models.names()]
        return WholeReply(status=200, headers=headers, body=dumps(read))

    async def _relay(
        self, request: web.BaseRequest, reply: aiohttp.ClientResponse, names: Names | None
    ) -> web.StreamResponse:
        headers = from_engine(reply.headers)
        if not 200 <= reply.status < 600:
            raise RequestRefused(502, f"the model's server answers with the status {reply.status}", retry_after=1.0)
        if names is None and (reply.content_length is None or reply.content_length > _WHOLE):
            return await hand_on(request, reply, headers, self._config.proxy.upstream_timeout)
        try:
            body = await self._whole(reply)
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            status = 504 if isinstance(e, TimeoutError) else 502
            raise RequestRefused(status, f"the model's server broke off: {type(e).__name__}", retry_after=1.0) from e
        if names is not None:
            body = _renamed(body, *names, everywhere=reply.status >= 400)
        return WholeReply(status=reply.status, headers=headers, body=body)

    async def _whole(self, reply: aiohttp.ClientResponse) -> bytes:
        """The body. Raises ``RequestRefused`` (502) where it is larger than a captured call's may be."""
        parts: list[bytes] = []
        kept = upstream.KeptReply(reply.close)
        self._memory.relayed.add(kept)
        try:
            async for part in parts_of(reply, self._config.proxy.upstream_timeout):
                kept.received += len(part)
                parts.append(part)
                largest = self._memory.grow(len(part))
                if kept.received > upstream.MAX_REPLY or largest is kept:
                    most = f"more than {upstream.MAX_REPLY} bytes"
                    why = upstream.TOO_MUCH % self._memory.limit if largest is kept else most
                    raise RequestRefused(502, f"the model's server answers with {why}", retry_after=1.0)
                if largest is not None:
                    largest.give_up(upstream.TOO_MUCH % self._memory.limit)
        finally:
            self._memory.relayed.discard(kept)
        return b"".join(parts)


def _renamed(body: bytes, engines: bytes, clients: bytes, *, everywhere: bool) -> bytes:
    """``everywhere``: an error names the model in its message."""
    if everywhere:
        return body.replace(engines[1:-1], clients[1:-1])
    return body.replace(b'"model":' + engines, b'"model":' + clients, 1).replace(
        b'"model": ' + engines, b'"model": ' + clients, 1
    )
