"""The web page at ``/``: three files, no external resources, all text by ``textContent``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

HERE = Path(__file__).parent
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html"),
    "/static/page.js": ("page.js", "text/javascript"),
    "/static/page.css": ("page.css", "text/css"),
}


def add(app: web.Application) -> None:
    for path, (name, kind) in FILES.items():
        app.router.add_route("GET", path, _sender(HERE / name, kind))


def _sender(path: Path, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    body = path.read_bytes()

    async def send(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers={**HEADERS, "content-type": f"{kind}; charset=utf-8"})

    return send
