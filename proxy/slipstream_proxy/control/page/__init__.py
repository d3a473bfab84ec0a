"""The web page at ``/``: three built files (``page/`` holds their sources), no external resources.

The files are sent packed where the browser takes that, and with an ETag, so that a reload costs one empty reply.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from aiohttp import web

PAGE_FOLDER = Path(__file__).parent
PAGE_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Trusted types: no text becomes HTML or script, whatever a transcript holds."""
PAGE_HEADERS = {
    "content-security-policy": PAGE_CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}
PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/static/page.js": ("page.js", "text/javascript"),
    "/static/page.css": ("page.css", "text/css"),
}


def add(app: web.Application) -> None:
    for path, (name, kind) in PAGE_FILES.items():
        app.router.add_route("GET", path, _sender(PAGE_FOLDER / name, kind))


@cache
def _packed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def _sender(path: Path, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    body = path.read_bytes()
    packed = _packed(body)
    headers = {**PAGE_HEADERS, "content-type": f"{kind}; charset=utf-8", "etag": f'W/"{sha256(body).hexdigest()[:20]}"'}

    async def send(request: web.Request) -> web.StreamResponse:
        if headers["etag"] in request.headers.get("if-none-match", ""):
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", "").lower():
            return web.Response(body=packed, headers={**headers, "content-encoding": "gzip"})
        return web.Response(body=body, headers=headers)

    return send
