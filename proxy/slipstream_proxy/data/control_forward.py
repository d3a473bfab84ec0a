"""The control API and the page: forwarded to the control plane's Unix socket as they are, with who is asking."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from yarl import URL

from slipstream_proxy.data.admission import credential
from slipstream_proxy.data.body import body_parts
from slipstream_proxy.data.forwarding import end_to_end, first_fields, hand_on
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.keys import ANYONE

if TYPE_CHECKING:
    from slipstream_proxy.data.plane import Plane

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CREDENTIALS = ("authorization", "x-api-key", "api-key")
_DONE = re.compile(r"^/slipstream/v1/episodes/([^/]+)/done$")
_PAGE = ("/", "/favicon.ico")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")


def is_control(path: str) -> bool:
    return path in _PAGE or path.startswith(("/slipstream/", "/static/"))


def check_host(plane: Plane, request: web.BaseRequest) -> None:
    """Without keys anybody on this machine may ask, but no web page in its browser: DNS rebinding shows in Host, cross-site requests in
    Origin. Raises ``Refused`` (403).
    """
    if plane.admission.open:
        named, allowed = request.headers.get("Host", ""), _allowed(plane)
        # a target that is a whole URL names its host, too
        if not _HOST.fullmatch(named) or not {_hostname(f"//{named}"), _hostname(f"//{request.host}")} <= allowed:
            raise Refused(403, "Host: this name is not served (proxy.allowed_hosts adds one)", param="host")
    check_origin(plane, request)


def check_origin(plane: Plane, request: web.BaseRequest) -> None:
    """Enough where only what is sent matters: a browser says the page's origin with every POST. Raises ``Refused`` (403)."""
    origins = request.headers.getall("Origin", ())
    if plane.admission.open and any(_hostname(origin) not in _allowed(plane) for origin in origins):
        raise Refused(
            403, "Origin: another site's page may not ask this (proxy.allowed_hosts adds one)", param="origin"
        )


def _allowed(plane: Plane) -> set[str | None]:
    return {*_LOOPBACK, *(name.lower() for name in (plane.config.proxy.host, *plane.config.proxy.allowed_hosts))}


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _auth(plane: Plane, request: web.BaseRequest, path: str) -> str:
    """Who asks, for the control plane. The page itself needs no key: it asks for one."""
    headers = first_fields(request)
    if plane.admission.open:
        key = ANYONE
    elif credential(headers)[0] is None and (path in _PAGE or path.startswith("/static/")):
        return json.dumps({"key": "-", "scopes": []})
    else:
        key, _ = plane.admission.who(headers)
    return json.dumps({"key": key.id, "scopes": list(key.scopes)})


async def forward_to_control(plane: Plane, request: web.BaseRequest) -> web.StreamResponse:
    """Raises ``Refused``; bodies are streamed both ways (adapter uploads, NDJSON that never ends)."""
    path = request.rel_url.raw_path
    try:
        check_host(plane, request)
        auth = _auth(plane, request, path)
    except Refused as e:
        return _refused(e)
    headers = end_to_end(request.headers)
    for name in {n for n in headers if n.lower() in _CREDENTIALS or n.lower().startswith("x-slipstream-")}:
        headers.popall(name, None)
    headers.popall("content-encoding", None)  # what is read of the body is unpacked
    headers["x-slipstream-auth"] = auth
    body = body_parts(request, sys.maxsize, plane.config.proxy.header_timeout) if request.can_read_body else None
    url = URL(f"http://control{request.rel_url.raw_path_qs}", encoded=True)
    try:
        reply = await plane.link.session.request(
            request.method,
            url,
            headers=headers,
            data=body,
            allow_redirects=False,
        )
    except (aiohttp.ClientError, OSError, TimeoutError) as e:
        if isinstance(e.__cause__, Refused):
            return _refused(e.__cause__)  # the client's body, and not the control plane
        return _refused(
            Refused(503, "the control plane does not answer; calls are served and recorded meanwhile", retry_after=1.0)
        )
    async with reply:
        if request.method == "POST" and reply.status < 300 and (m := _DONE.match(path)):
            plane.episodes.finish(json.loads(auth)["key"], m[1])
        return await hand_on(request, reply)


def _refused(e: Refused) -> web.Response:
    """In the control API's shape."""
    detail = {"type": e.kind, "message": e.message, "field": e.param, "fix": None}
    response = web.json_response({"error": detail}, status=e.status)
    if e.retry_after is not None:
        response.headers["retry-after"] = "1"
    if e.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if e.status == 408:
        response.force_close()
    return response
