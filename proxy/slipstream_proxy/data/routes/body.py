"""A request's body through aiohttp, within the limits of its size and its slowness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.request import MIN_RATE


async def body_parts(request: web.BaseRequest, limit: int, timeout: float) -> AsyncIterator[bytes]:
    """The body, unpacked. Raises ``RequestRefused``: too large, slow (``timeout`` s behind) or malformed."""
    too_large = RequestRefused(413, f"the request's body is larger than {limit} bytes", field="body", fix="send less")
    if (request.content_length or 0) > limit:  # nobody waits for it
        raise too_large
    size = 0
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        try:
            async with asyncio.timeout(max(0.0, since + timeout - loop.time())):
                part = await request.content.readany()
        except TimeoutError:
            raise RequestRefused(408, "the request's body did not arrive in time") from None
        except web.RequestPayloadError as e:
            packed = "content-encoding" in request.headers
            where = ("header.content-encoding", "send the body packed as the header says") if packed else ("body", None)
            raise RequestRefused(400, "the request's body is malformed", field=where[0], fix=where[1]) from e
        if not part:
            return
        size += len(part)
        if size > limit:
            raise too_large
        since = min(loop.time(), since + len(part) / MIN_RATE)
        yield part


async def read_body(request: web.BaseRequest, limit: int, timeout: float) -> bytes:
    """The whole body. Raises as ``body_parts`` does."""
    return b"".join([part async for part in body_parts(request, limit, timeout)])
