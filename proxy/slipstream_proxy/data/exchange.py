"""One captured call from request to record: identify, choose, inject, forward; ``Reply`` relays, ``CallState`` records.

It runs in callbacks of the client's and the engine's connections, without a task of its own. Nothing here may raise into a transport:
``begin`` and the ``up_*`` methods answer with an error of the format's shape instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from slipstream_proxy.data import translated
from slipstream_proxy.data.callstate import renaming
from slipstream_proxy.data.http1 import digits
from slipstream_proxy.data.identity import read_tags
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.data.reply import Reply
from slipstream_proxy.dialects.base import Turn, dumps, loads
from slipstream_proxy.dialects.numbers import has_long_integer, python_loads

if TYPE_CHECKING:
    from slipstream_proxy.keys import Key

log = logging.getLogger(__name__)
_checksum: Final[Callable[[bytes], int]] = crc32c


def body_hash(body: bytes) -> str:
    """Tells the bodies of one client's retries apart: a checksum and the length, at a hundredth of a cryptographic hash's price."""
    check: int = _checksum(body)
    return f"{len(body)}-{check}"


def _has_long_integer(body: dict[str, Any]) -> bool:
    """Looked for where they are found in requests: going through whole conversations would cost more than all the rest."""
    for name in ("tools", "response_format", "seed"):
        value = body.get(name)
        if value is not None and has_long_integer(value):
            return True
    return False


class Call(Reply):
    """The request's side."""

    __slots__ = ()

    def begin(self) -> None:
        plane = self.plane
        try:
            key, suffix = plane.admission.who(self.request.headers)
            plane.admission.enter(key)
            self.key = key
            plane.in_flight.add(self)
            self._read(key, suffix)
            if self.request.idempotency is None or not self._replayed():
                self._choose()
        except Refused as e:
            self._refuse(e)
        except Exception:
            log.exception("a call could not be relayed")
            self._refuse(Refused(502, "the proxy failed at this request"))

    def _read(self, key: Key, suffix: str | None) -> None:
        plane, request = self.plane, self.request
        try:
            body: Any = loads(self.body)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            body = None  # the engine says what is wrong with it
        elif _has_long_integer(body):
            body = python_loads(self.body)
        tags = request.tags
        metadata = body is not None and isinstance(body.get("metadata"), dict)
        if tags is None or metadata:
            tags = read_tags(request.ours, request.prefix, suffix, body, traceparent=plane.config.identity.traceparent)
            if tags.episode is not None and not metadata:
                request.tags = tags
        self.tags = tags
        self.turn = self._turn(body) if tags.episode is None and body is not None else None
        self.bodyhash = body_hash(self.body)
        if self.turn is not None and request.attempt:
            tags.episode, tags.origin = plane.episodes.again(key.id, self.bodyhash), "continued"
        self.episode = plane.episodes.of(key.id, tags, self.turn)
        self._inject(body)

    def _turn(self, body: dict[str, Any]) -> Turn:
        try:
            return self.dialect.turn(body)
        except Exception as e:  # a body that the engine will refuse, too
            log.debug("no conversation can be read: %s", e)
            return Turn()

    def _inject(self, body: dict[str, Any] | None) -> None:
        """Model map, then what exact capture needs."""
        asked = body.get("model") if body is not None else None
        self.client = asked if isinstance(asked, str) and asked else self.plane.routes.default
        self.route = self.plane.routes.of(self.client)
        self.adapter = self.route.model
        if body is None or (asked is not None and not isinstance(asked, str)):
            self.note = "unreadable request"
            self.text = None
            return
        if self.route.kind != "upstream":
            injected = self.dialect.inject(body)
            if injected.back is not None:
                translated.begin(self, injected, body)
            body, self.note = injected.body, injected.note
            self.hide = injected.hide or None
        self.text = body

    def _replayed(self) -> bool:
        idempotency = self.request.idempotency
        if idempotency is None or self.key is None:
            return False
        found = self.plane.replays.get(self.key.id, idempotency, self.bodyhash)
        if found is None:
            return False
        if found.stream:
            self.sink.send_head(found.status, found.block)
            self._end()
            self.sink.send_end(found.body)
        else:
            self._end()
            self.sink.send_whole(found.status, found.block, found.body)
        return True

    def _choose(self) -> None:
        """Pin, engine; then forward. Runs again when a pin had to be waited for."""
        if self.ended:
            return
        episode, route, plane = self.episode, self.route, self.plane
        assert episode is not None
        if route.kind == "upstream":
            self.servers = [route.upstream or ""]
        else:
            if plane.live.held_until is not None and plane.holding.on:
                plane.holding.wait(self._chosen, self._refuse)
                return
            if route.kind == "trained":
                pin = plane.pinned(episode, route.model)
                if pin is None:
                    pin = plane.pin(episode, route.model, self._chosen)
                if pin is None:
                    return
                self.pin = pin
                self.adapter = pin.adapter
            self.servers = plane.live.servers(self.adapter, episode.id)
            if not self.servers:
                raise Refused(503, "no engine has this model loaded at the moment", retry_after=1.0)
        if self.adapter != self.client:
            self.names = renaming(self.adapter, self.client)
        if self.back is None or translated.settle(self, self._chosen):
            self._send()

    def _chosen(self) -> None:
        try:
            self._choose()
        except Refused as e:
            self._refuse(e)
        except Exception:
            log.exception("a call could not be relayed")
            self._refuse(Refused(502, "the proxy failed at this request"))

    def _send(self, *, fresh: bool = False) -> None:
        plane, request = self.plane, self.request
        if self.text is not None:
            if self.route.kind != "trained" or "model" in self.text or self.adapter != plane.routes.default:
                self.text["model"] = self.adapter
            self.body = dumps(self.text)
        self.upstream = url = self.servers[min(self.tries, len(self.servers) - 1)]
        self.tries += 1
        pool = plane.pools.get(url) or plane.pool(url)
        path = request.path if self.back is None else translated.CHAT
        if self.route.kind == "upstream" and pool.prefix.endswith(b"/v1"):
            path = path.removeprefix("/v1")  # a base URL as the OpenAI clients write it
        key = plane.engine_key
        if self.route.kind == "upstream":
            key = b"Authorization: Bearer %b\r\n" % self.route.key.encode() if self.route.key else b""
        block = request.block if plane.tracing is None else plane.tracing.block(self, request.block)
        body, number = self.body, b""
        if b"x-request-id" not in request.headers:  # the engine's log and the reply's id then name the call
            number = b"X-Request-Id: %b\r\n" % self.id.encode()
        start, length = pool.start(path), digits(len(body))
        data = b"%b%b%b%bContent-Length: %b\r\n\r\n%b" % (start, block, number, key, length, body)
        self.forwarded = time.time()
        self.sent = pool.send(data, self, fresh=fresh)
