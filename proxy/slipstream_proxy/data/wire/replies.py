"""Replies of other servers, relayed through aiohttp: hop-by-hop fields stay behind, and bodies are streamed.

Not compiled: it runs only on aiohttp's way.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from multidict import CIMultiDict

from slipstream_proxy.data.wire.http1 import GUARD_HEADERS, HOP_BY_HOP, passes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    import aiohttp

_HOP = frozenset(name.decode() for name in HOP_BY_HOP)
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class StreamedReply(web.StreamResponse):
    """Without the fields that aiohttp adds by itself: a reply goes on with those of the server that made it."""

    async def _prepare_headers(self) -> None:
        added = [name for name in (hdrs.SERVER, hdrs.DATE, hdrs.CONTENT_TYPE) if name not in self.headers]
        await super()._prepare_headers()
        for name in added:
            self.headers.popall(name, None)
        for guard, value in GUARD_HEADERS.items():
            self.headers.setdefault(guard, value)  # the page's files bring their own


class WholeReply(StreamedReply, web.Response):
    """The same of a reply that is there at once."""


def header_map(fields: Iterable[bytes]) -> CIMultiDict[str]:
    found: CIMultiDict[str] = CIMultiDict()
    for line in fields:
        name, _, value = line.partition(b":")
        found.add(name.decode("latin-1"), value.strip().decode("latin-1"))
    return found


def first_fields(request: web.BaseRequest) -> dict[bytes, bytes]:
    """By lower-case name, the first of several, as the fast way reads them."""
    found: dict[bytes, bytes] = {}
    for name, value in request.raw_headers:
        found.setdefault(name.lower(), value)
    return found


def end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The fields that go on, each as often as it is there. A field that aiohttp reads but HTTP forbids stays behind."""
    hop = {*_HOP, *(name.strip().lower() for name in headers.get("Connection", "").split(","))}
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in hop and _NAME.fullmatch(name) and not _UNFIT.search(value)
    )


def from_engine(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The fields of an engine's reply that a client gets."""
    found = end_to_end(headers).items()
    return CIMultiDict((name, value) for name, value in found if passes(name.lower().encode("latin-1")))


async def parts_of(reply: aiohttp.ClientResponse, timeout: float | None) -> AsyncIterator[bytes]:
    """The body as it comes. Raises ``TimeoutError`` where none of it comes for so many seconds.

    aiohttp's own time-out begins anew with each byte, and a chunk's extension may be endless.
    """
    while True:
        async with asyncio.timeout(timeout):
            part = await reply.content.readany()
        if not part:
            return
        yield part


async def hand_on(
    request: web.BaseRequest,
    reply: aiohttp.ClientResponse,
    headers: CIMultiDict[str],
    timeout: float | None = None,
) -> web.StreamResponse:
    """Each part of the body when it arrives. Raises as ``parts_of`` does: then the client's body is cut off."""
    response = StreamedReply(status=reply.status, headers=headers)
    if request.version >= (1, 1):
        response.enable_chunked_encoding()
    else:
        response.force_close()
    await response.prepare(request)
    async for data in parts_of(reply, timeout):
        await response.write(data)
    await response.write_eof()
    return response
