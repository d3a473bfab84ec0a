"""The control API and the page: forwarded to the control plane's Unix socket as they are, with who is asking."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import aiohttp
from aiohttp import web
from yarl import URL

from slipstream.contract import Headers, RewardAck, id_of
from slipstream_proxy.data.access.admission import credential
from slipstream_proxy.data.routes.body import body_parts, read_body
from slipstream_proxy.data.routes.taken import EndingRequest, TakenChange, TakenRewards
from slipstream_proxy.data.routes.turned_away import TurnedAway, asked
from slipstream_proxy.data.wire.codings import unread
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.http1 import GUARD_HEADERS
from slipstream_proxy.data.wire.identity import text_of
from slipstream_proxy.data.wire.replies import end_to_end, first_fields, hand_on
from slipstream_proxy.keys import KEYLESS_CALLER
from slipstream_proxy.log.ids import new_id

if TYPE_CHECKING:
    from multidict import CIMultiDict

    from slipstream_proxy.data.access.admission import Admission
    from slipstream_proxy.data.access.hosts import AllowedHosts
    from slipstream_proxy.data.engines.control_link import ControlLink
    from slipstream_proxy.data.episode.memory import EpisodeMemory
    from slipstream_proxy.json_types import JsonObject
    from slipstream_proxy.redaction import Redaction

log = logging.getLogger(__name__)

_CREDENTIALS = ("authorization", "x-api-key", "api-key")
_ENDING = re.compile(r"^/slipstream/v1/episodes/([^/]+)/(done|rewards|feedback)$")
_NOTED = re.compile(r"^/slipstream/v1/(?:annotations|episodes/[^/]+/comments)$")
_PAGE = ("/", "/favicon.ico")
MOST_REWARD = 2**20
"""Bytes of a body that is kept until the control plane has it: a reward's, an end mark's or a note's."""


def is_control(path: str) -> bool:
    return path in _PAGE or path.startswith(("/slipstream/", "/static/"))


def ends_run(request: web.BaseRequest) -> bool:
    """Whether an agent says how a run went."""
    return request.method == "POST" and _ENDING.match(request.rel_url.raw_path) is not None


class ControlRoutes:
    """Forwards requests to the control plane."""

    def __init__(
        self,
        link: ControlLink,
        admission: Admission,
        hosts: AllowedHosts,
        episodes: EpisodeMemory,
        timeout: float,
        taken: TakenRewards,
        redaction: Redaction | None = None,
    ) -> None:
        """``timeout``: seconds that a body may stand still. ``episodes`` is told which ones are done. ``taken`` keeps
        what the control plane does not take.
        """
        self._taken, self._redaction = taken, redaction
        self._link, self._admission, self._hosts, self._episodes = link, admission, hosts, episodes
        self._timeout = timeout
        self._sending: set[asyncio.Task[Any]] = set()
        self._turned_away = TurnedAway()

    def _auth(self, request: web.BaseRequest, path: str) -> JsonObject:
        """Who asks, for the control plane. The page itself needs no key: it asks for one."""
        headers = first_fields(request)
        if self._admission.open:
            key = KEYLESS_CALLER
        elif credential(headers)[0] is None and (path in _PAGE or path.startswith("/static/")):
            return {"key": "-", "scopes": []}
        else:
            key, _ = self._admission.who(headers)
        return {"key": key.id, "scopes": list(key.scopes), "made": key.created}

    async def forward(self, request: web.BaseRequest) -> web.StreamResponse:
        """Bodies are streamed both ways: adapter uploads, and NDJSON that never ends."""
        path = request.rel_url.raw_path
        try:
            self._hosts.check(request)
            auth = self._auth(request, path)
        except RequestRefused as e:
            return control_refusal(e)
        if (unreadable := unread(request.headers.get("content-encoding", ""))) is not None:
            return control_refusal(unreadable)
        headers = end_to_end(request.headers)
        for name in {n for n in headers if n.lower() in _CREDENTIALS or n.lower().startswith("x-slipstream-")}:
            headers.popall(name, None)
        headers.popall("content-encoding", None)  # what is read of the body is unpacked
        headers["x-slipstream-auth"] = json.dumps(auth)
        url = URL(f"http://control{request.rel_url.raw_path_qs}", encoded=True)
        posted = request.method == "POST"
        ending = _ENDING.match(path) if posted else None
        once = ending or (posted and _NOTED.match(path))
        if ending:
            key = request.query.get("key") or auth["key"]
            episode = self._episode(ending[1])
            if self._episodes.has_begun(key, episode):
                headers["x-slipstream-begun"] = "1"
        try:
            if ending:
                return await self._end(request, url, headers, auth, key, episode, ending[2])
            what = asked(auth["key"], request.method, path)
            await self._turned_away.check(what)
            reply = await (self._deliver if once else self._send)(request, url, headers)
            if reply.status == 429:
                self._turned_away.note(what, reply.headers.get("retry-after", ""))
        except RequestRefused as e:
            return control_refusal(e)
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            if isinstance(e.__cause__, RequestRefused):
                return control_refusal(e.__cause__)  # the client's body, and not the control plane
            why = "does not answer" if self._link.live.known else "does not answer yet: it takes some seconds to start"
            message = f"the control plane {why}; calls are served meanwhile"
            return control_refusal(RequestRefused(503, message, retry_after=1.0))
        async with reply:
            return await hand_on(request, reply, end_to_end(reply.headers))

    def _episode(self, part: str) -> str:
        """The id of the episode that a part of a path names."""
        text = text_of(unquote_to_bytes(part))
        name = id_of(text)
        return name if self._redaction is None else self._redaction.id("episode", text, name)

    async def _end(
        self,
        request: web.BaseRequest,
        url: URL,
        headers: CIMultiDict[str],
        auth: JsonObject,
        key: str,
        episode: str,
        what: str,
    ) -> web.StreamResponse:
        """A reward, an end mark or feedback: the control plane's to take, or this worker's if that does not answer."""
        body = await read_body(request, MOST_REWARD, self._timeout) if request.can_read_body else b""
        begun = "x-slipstream-begun" in headers
        asked = EndingRequest(what, key, episode, body, auth, request.query.get("key"), begun)
        change = self._taken.change(asked) if set(request.query) <= {"key"} else None
        headers["x-slipstream-write"] = new_id()
        taking = asyncio.ensure_future(self._given(url, headers, body, change, begun=begun))
        self._sending.add(taking)
        taking.add_done_callback(self._sending.discard)
        try:
            reply = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_forget)
            raise
        if isinstance(reply, RewardAck):
            if reply.done and begun:
                self._episodes.finish(key, episode)
            done = {Headers.DONE: "true"} if reply.done and begun else {}
            return web.json_response(text=reply.model_dump_json(), headers=done)
        async with reply:
            if Headers.DONE in reply.headers:
                self._episodes.finish(key, episode)
            return await hand_on(request, reply, end_to_end(reply.headers))

    async def _given(
        self, url: URL, headers: CIMultiDict[str], body: bytes, change: TakenChange | None, *, begun: bool
    ) -> aiohttp.ClientResponse | RewardAck:
        headers.popall("content-length", None)
        sent = self._link.request(
            "POST",
            url,
            restart=True,
            instead=change is not None,
            headers=headers,
            data=body or None,
            allow_redirects=False,
        )
        try:
            return await sent
        except (aiohttp.ClientError, OSError, TimeoutError):
            if change is None:
                raise
        ack = await self._taken.keep(headers["x-slipstream-write"], change, begun=begun)
        if ack is None:
            raise RequestRefused(503, "this cannot be kept now: the spool cannot be written", retry_after=1.0)
        return ack

    async def _send(self, request: web.BaseRequest, url: URL, headers: CIMultiDict[str]) -> aiohttp.ClientResponse:
        body = body_parts(request, sys.maxsize, self._timeout) if request.can_read_body else None
        return await self._link.request(request.method, url, headers=headers, data=body, allow_redirects=False)

    async def _deliver(self, request: web.BaseRequest, url: URL, headers: CIMultiDict[str]) -> aiohttp.ClientResponse:
        """A note. Hardly any agent sends one twice, and many wait five seconds at most. So
        while the control plane is started again it waits, and it is delivered even where the client is gone.
        """
        body = await read_body(request, MOST_REWARD, self._timeout) if request.can_read_body else None
        headers.popall("content-length", None)  # the body's as it came, and it may have been packed
        headers["x-slipstream-write"] = new_id()  # the same over all re-sends: what is stored already is not again
        sent = self._link.request("POST", url, restart=True, headers=headers, data=body, allow_redirects=False)
        sending = asyncio.ensure_future(sent)
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(_forget)
            raise


def _forget(sending: asyncio.Task[Any]) -> None:
    """Nobody waits for this reply any more."""
    if sending.cancelled():
        return
    if (why := sending.exception()) is not None:
        log.warning(
            "a reward, an end mark or a note is lost: the control plane did not come back: %s", type(why).__name__
        )
    elif not isinstance(sending.result(), RewardAck):
        sending.result().close()


def control_refusal(e: RequestRefused) -> web.Response:
    """In the control API's shape."""
    detail = {"type": e.kind, "message": e.message, "field": e.field, "fix": e.fix}
    response = web.json_response({"error": detail}, status=e.status, headers=GUARD_HEADERS)
    if e.retry_after is not None:
        response.headers["retry-after"] = "1"
    if e.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if e.status == 408:
        response.force_close()
    return response
