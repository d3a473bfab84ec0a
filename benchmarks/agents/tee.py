"""Stands between an agent's program and the proxy, and keeps what either sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from slipstream_proxy.data.wire.identity import split_path
from slipstream_proxy.dialects import of_path

CHAT = "/v1/chat/completions"
ASKED = ("return_token_ids", "logprobs")
"""What the proxy asks the engine for beside what the program asks, as docs/capture.md says."""
BILLING = "x-anthropic-billing-header"
"""A system block of Claude Code's that begins so differs each time: vLLM's own route leaves it out, too."""
_TEXTS = ("text", "content", "instructions", "output", "system")
_HOP = ("connection", "transfer-encoding", "content-length", "host", "keep-alive")


class Exchange(NamedTuple):
    """A call of the program, with the reply as the program got it."""

    route: str
    id: str
    """The call's, as the engine got it in ``X-Request-Id``."""
    body: bytes
    reply: bytes


class Tee:
    """``seen``: the calls of captured routes, in the order of their ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[Exchange] = []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{rest:.*}", self.relay)
        return app

    async def relay(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        async with (
            aiohttp.ClientSession(auto_decompress=False, trust_env=False) as session,
            session.request(
                request.method, self.url + request.raw_path, headers=headers, data=body, allow_redirects=False
            ) as got,
        ):
            kept = {name: value for name, value in got.headers.items() if name.lower() not in _HOP}
            response = web.StreamResponse(status=got.status, headers=kept)
            await response.prepare(request)
            parts = []
            async for part in got.content.iter_any():
                parts.append(part)
                try:
                    await response.write(part)
                except ConnectionError:  # the program has gone: the proxy is to see it, too
                    return response
            form = of_path(split_path(request.path).path)
            if form is not None and got.status == 200:
                own = request.headers.get("x-request-id") or got.headers.get("x-slipstream-call") or ""
                self.seen.append(Exchange(form.path, own, body, b"".join(parts)))
            await response.write_eof()
        return response


def texts(value: Any, *, said: bool = False) -> Iterator[str]:
    """What messages and results say. ``said``: ``value`` is such a text, or its parts."""
    if isinstance(value, str) and said:
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from texts(part, said=said)
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from texts(part, said=name in _TEXTS)


def is_same_request(exchange: Exchange, engines: dict[str, Any]) -> bool:
    """Whether the engine got what the program sent: all of it but ``ASKED`` on the chat route, and on the others, which
    are asked as a chat completion, every text.
    """
    own = json.loads(exchange.body)
    if exchange.route == CHAT:
        asked = {name: True for name in ASKED if own.get(name) in (None, False)}
        return bool({**own, **asked, "model": engines["model"]} == engines)
    told = "\n".join(texts(engines))
    names = ("messages", "input", "system", "instructions", "contents", "systemInstruction")
    parts = {name: own[name] for name in names if own.get(name) is not None}
    said = texts(parts, said=isinstance(own.get("input"), str))
    return all(text in told for text in said if not text.startswith(BILLING))
