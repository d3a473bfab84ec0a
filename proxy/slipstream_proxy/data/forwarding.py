"""Replies of other servers, handed on through aiohttp: fields of this hop stay behind, bodies are streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from multidict import CIMultiDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp

_HOP = frozenset((
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    "content-length", "expect",
))  # fmt: skip


def end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The fields that go on, each as often as it is there."""
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP)


async def hand_on(request: web.BaseRequest, reply: aiohttp.ClientResponse) -> web.StreamResponse:
    """Each part of the body when it arrives."""
    response = web.StreamResponse(status=reply.status, headers=end_to_end(reply.headers))
    if request.version >= (1, 1):
        response.enable_chunked_encoding()
    await response.prepare(request)
    async for data in reply.content.iter_any():
        await response.write(data)
    await response.write_eof()
    return response
