"""One captured call from request to record: identify, choose, inject, forward, relay, record.

It runs in callbacks of the client's and the engine's connections, without a task of its own. Nothing here may raise into a transport:
``begin`` and the ``up_*`` methods answer with an error of the format's shape instead.
"""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING, Any

from slipstream_proxy.data.episodes import Episode, Pinned, new_id
from slipstream_proxy.data.identity import Prefix, read_tags
from slipstream_proxy.data.plane import Plane, Replay
from slipstream_proxy.data.record import make_head, make_texts
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.data.request import Request, Sink
from slipstream_proxy.dialects.base import Dialect, Events, Hide, Turn, dumps, loads
from slipstream_proxy.records import Kind

if TYPE_CHECKING:
    from slipstream_proxy.data.http1 import ResponseHead
    from slipstream_proxy.data.upstream import Sent
    from slipstream_proxy.keys import Key

log = logging.getLogger(__name__)

MAX_TRIES = 3


_labels: dict[tuple[str, str, int], str] = {}


def _label(label: tuple[str, str, int]) -> str:
    _labels[label] = 'format="{}",outcome="{}",status="{}xx"'.format(*label)
    return _labels[label]


class Call:
    """A ``Receiver`` of the engine's reply; what the client shall get goes to its ``Sink``."""

    __slots__ = (
        "adapter",
        "attempt",
        "bodyhash",
        "client",
        "dialect",
        "ended",
        "episode",
        "events",
        "first",
        "head",
        "held",
        "hide",
        "id",
        "idempotency",
        "key",
        "names",
        "note",
        "parts",
        "pin",
        "plane",
        "prefix",
        "relayed",
        "request",
        "route",
        "sent",
        "servers",
        "sink",
        "started",
        "stream",
        "tags",
        "terminal",
        "text",
        "tries",
        "turn",
        "upstream",
    )

    def __init__(self, plane: Plane, request: Request, prefix: Prefix, dialect: Dialect, sink: Sink) -> None:
        self.plane, self.request, self.prefix, self.dialect, self.sink = plane, request, prefix, dialect, sink
        self.started = time.time()
        self.id = new_id()
        self.key: Key | None = None
        self.episode: Episode | None = None
        self.pin: Pinned | None = None
        self.note: str | None = None
        self.names: tuple[bytes, bytes] | None = None
        self.hide = Hide()
        self.events: Events | None = None
        self.head: ResponseHead | None = None
        self.sent: Sent | None = None
        self.parts: list[bytes] = []
        self.held: list[bytes] = []
        self.servers: list[str] = []
        self.first: float | None = None
        self.stream = self.terminal = self.ended = self.relayed = False
        self.tries = 0
        self.upstream = self.adapter = ""

    # --- the request ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        plane = self.plane
        try:
            key, suffix = plane.admission.who(self.request.headers)
            plane.admission.enter(key)
            self.key = key
            plane.in_flight.add(self)
            self._read(key, suffix)
            if not self._replayed():
                self._choose()
        except Refused as e:
            self._refuse(e)
        except Exception:
            log.exception("a call could not be relayed")
            self._refuse(Refused(502, "the proxy failed at this request"))

    def _read(self, key: Key, suffix: str | None) -> None:
        plane, request = self.plane, self.request
        try:
            body: Any = loads(request.body)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            body = None  # the engine says what is wrong with it
        headers = request.headers
        tags = self.tags = read_tags(request.ours, self.prefix, suffix, body, traceparent=plane.config.identity.traceparent)
        self.turn = self._turn(body) if tags.episode is None and body is not None else None
        self.episode = plane.episodes.of(key.id, tags, self.turn)
        retry = headers.get(b"x-stainless-retry-count", b"0")
        self.attempt = int(retry) if retry.isdigit() and len(retry) < 4 else 0
        self.idempotency = headers.get(b"idempotency-key")
        self.bodyhash = hashlib.blake2b(request.body, digest_size=12).hexdigest()
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
            self.text: dict[str, Any] | None = None
            return
        if self.route.kind != "upstream":
            injected = self.dialect.inject(body)
            body, self.hide, self.note = injected.body, injected.hide, injected.note
        self.text = body

    def _replayed(self) -> bool:
        if self.idempotency is None or self.key is None:
            return False
        found = self.plane.replays.get(self.key.id, self.idempotency, self.bodyhash)
        if found is None:
            return False
        if found.stream:
            self.sink.send_head(found.status, found.fields)
            self.sink.send_part(found.body)
            self._end()
            self.sink.send_end()
        else:
            self._end()
            self.sink.send_whole(found.status, found.fields, found.body)
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
            if route.kind == "trained":
                pin = plane.pinned(episode, route.model, self._chosen)
                if pin is None:
                    return
                self.pin = pin
                self.adapter = pin.adapter
            self.servers = plane.live.servers(self.adapter, episode.id)
            if not self.servers:
                raise Refused(503, "no engine has this model loaded at the moment", retry_after=1.0)
        if self.adapter != self.client:
            self.names = (dumps(self.adapter), dumps(self.client))
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
            request.body = dumps(self.text)
        self.upstream = url = self.servers[min(self.tries, len(self.servers) - 1)]
        self.tries += 1
        pool = plane.pool(url)
        path = request.path
        if self.route.kind == "upstream" and pool.prefix.endswith(b"/v1"):
            path = path.removeprefix("/v1")  # a base URL as the OpenAI clients write it
        lines = [b"POST %b%b HTTP/1.1" % (pool.prefix, path.encode("latin-1")), b"Host: " + pool.authority]
        lines += request.lines
        if self.route.kind == "upstream":
            if self.route.key:
                lines.append(b"Authorization: Bearer " + self.route.key.encode())
        elif plane.engine_key:
            lines.append(plane.engine_key)
        lines.append(b"Content-Length: %d\r\n\r\n" % len(request.body))
        self.sent = pool.send(b"\r\n".join(lines) + request.body, self, fresh=fresh)

    # --- the reply --------------------------------------------------------------------------------------------------

    def _fields(self) -> list[bytes]:
        fields = list(self.head.fields) if self.head is not None else [b"content-type: application/json"]
        if self.episode is not None and self.tags.split != "off":
            fields.append(b"x-slipstream-episode: " + self.episode.id.encode())
            fields.append(b"x-slipstream-call: " + self.id.encode())
        if self.adapter:
            fields.append(b"x-slipstream-adapter: " + self.adapter.encode("ascii", "replace").replace(b"\n", b"?").replace(b"\r", b"?"))
        return fields

    def up_head(self, head: ResponseHead) -> None:
        self.head = head
        self.first = time.time()
        if self.servers and self.route.kind != "upstream":
            self.plane.live.mark_up(self.upstream)
        self.stream = head.status == 200 and head.content_type.startswith(b"text/event-stream")
        if self.stream:
            self.events = Events()
            self.relayed = True
            self.sink.send_head(head.status, self._fields())

    def up_body(self, data: bytes) -> None:
        self.parts.append(data)
        events = self.events
        if events is None:
            return
        try:
            out = [shown for event in events.feed(data) if (shown := self._shown(event)) is not None]
        except Exception:
            log.exception("an event could not be read; relayed as it came")
            out = [data]
        if out and not self.ended:
            self.sink.send_part(out[0] if len(out) == 1 else b"".join(out))

    def _shown(self, event: bytes) -> bytes | None:
        dialect = self.dialect
        if self.terminal or dialect.terminal(event):
            self.terminal = True
            self.held.append(self._renamed(event))
            return None
        if self.hide:
            shown = dialect.event(event, self.hide)
            if shown is None:
                return None
            event = shown
        return self._renamed(event)

    def _renamed(self, text: bytes) -> bytes:
        if self.names is None:
            return text
        ours, theirs = self.names
        changed = text.replace(b'"model":' + ours, b'"model":' + theirs, 1)
        if changed is text or changed == text:
            changed = text.replace(b'"model": ' + ours, b'"model": ' + theirs, 1)
        return changed

    def up_end(self) -> None:
        self.sent = None
        if self.ended:
            return
        reply = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        head = self.head
        assert head is not None
        try:
            if self.stream:
                assert self.events is not None
                if self.events.tail:
                    self.held.append(self.events.tail)
                shown = b"".join(self.held)
                outcome = "ok" if self.terminal else "error"
            else:
                shown = reply
                if head.status == 200:
                    shown = self._renamed(self.dialect.whole(reply, self.hide) if self.hide else reply)
                elif self.names is not None:
                    shown = reply.replace(self.names[0][1:-1], self.names[1][1:-1])
                outcome = "ok" if head.status < 400 else "error"
        except Exception:
            log.exception("a reply could not be read; relayed as it came")
            shown, outcome = reply, "ok"
        if self.tags.done and outcome == "ok" and self.episode is not None:
            self.episode.done = True
        self._remember(reply, outcome)
        self._record(reply, head.status, outcome, lambda _ok: self._deliver(shown, outcome))

    def _deliver(self, shown: bytes, outcome: str) -> None:
        """Durable (or given up): the reply's end may leave."""
        if self.ended:
            return
        head = self.head
        assert head is not None
        fields = self._fields() if not self.stream or self.idempotency is not None else []
        if self.idempotency is not None and self.key is not None and outcome == "ok" and not self.stream:
            self.plane.replays.put(self.key.id, self.idempotency, Replay(self.bodyhash, head.status, fields, shown, stream=False))
        self._count(head.status, outcome)
        self._end()
        if self.stream:
            if shown:
                self.sink.send_part(shown)
            self.sink.send_end()
        else:
            self.sink.send_whole(head.status, fields, shown)

    def up_failed(self, why: str, *, kind: str) -> None:
        self.sent = None
        if self.ended:
            return
        engine = self.route.kind != "upstream"
        if engine and kind in ("connect", "broken"):
            self.plane.live.mark_down(self.upstream)
        elsewhere = self.tries < min(len(self.servers), MAX_TRIES)
        if not self.relayed and kind != "timeout" and (elsewhere or (kind == "stale" and self.tries <= MAX_TRIES)):
            self.parts.clear()
            self.head = self.first = None
            self.plane.metrics.add("slipstream_upstream_retries_total")
            if kind == "stale":
                self.tries -= 1
                self.servers = [self.upstream, *self.servers] if self.upstream not in self.servers else self.servers
            try:
                self._send(fresh=kind == "stale")
            except Exception:
                log.exception("a call could not be sent again")
                self._refuse(Refused(502, "the proxy failed at this request"))
            return
        log.warning("call %s: %s", self.id, why)
        if self.relayed:
            self._broken(why)
            return
        status = {"timeout": 504, "connect": 503}.get(kind, 502)
        refused = Refused(status, f"the model's server cannot answer: {why}", retry_after=1.0)
        self.head = None
        self._record(b"", status, "error", lambda _ok: self._refuse(refused))

    def _broken(self, why: str) -> None:
        """The engine died in mid-stream: say so in the format's shape, then close without a terminal event."""
        message = f"the model's server broke off: {why}"
        self._record(b"".join(self.parts), 200, "error", None)
        self._count(502, "error")
        self._end()
        self.sink.send_part(self.dialect.error_event(502, message, "upstream_error"))
        self.sink.break_off()

    def client_gone(self) -> None:
        """The client closed: the engine stops, what there is of the call is recorded."""
        if self.ended:
            return
        sent, self.sent = self.sent, None
        if sent is not None:
            sent.drop()
        waiting = sent is None and self.head is not None  # only its durability was still awaited: it is recorded already
        if self.tries and not waiting:
            self._record(b"".join(self.parts), self.head.status if self.head else 499, "aborted", None)
        self._count(499, "aborted")
        self._end()

    def pause(self) -> None:
        if self.sent is not None:
            self.sent.pause()

    def resume(self) -> None:
        if self.sent is not None:
            self.sent.resume()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _refuse(self, e: Refused) -> None:
        if self.ended:
            return
        self.plane.metrics.add("slipstream_requests_refused_total", f'status="{e.status}"')
        self._count(e.status, "error")
        self._end()
        self.head = None
        fields = [*(self._fields() if self.tries else [b"content-type: application/json"]), *e.fields]
        self.sink.send_whole(e.status, fields, self.dialect.error(e.status, e.message, e.kind, e.param))

    def _remember(self, reply: bytes, outcome: str) -> None:
        if self.turn is not None and outcome == "ok" and self.episode is not None and not self.episode.done:
            self.plane.episodes.remember(self.episode, self.turn, self.dialect.said(reply, stream=self.stream))

    def _record(self, reply: bytes, status: int, outcome: str, done: Any) -> None:
        plane = self.plane
        if self.episode is None or self.key is None or (self.tags.split or self.episode.split) == "off":
            if done:
                done(True)
            return
        try:
            request, reply, note = make_texts(plane.redact, self.request.body, reply)
            head = make_head(self, status, outcome, note or self.note)
        except Exception:
            log.exception("a call could not be recorded")
            plane.metrics.add("slipstream_capture_lost_total")
            if done:
                done(False)
            return
        plane.spool.append(Kind.CALL, head, request, reply, done)

    def _count(self, status: int, outcome: str) -> None:
        metrics = self.plane.metrics
        label = (self.dialect.name, outcome, status // 100)
        metrics.add("slipstream_calls_total", _labels.get(label) or _label(label))
        metrics.call_seconds.observe(time.time() - self.started)
        if self.first is not None:
            metrics.first_byte.observe(self.first - self.started)

    def _end(self) -> None:
        self.ended = True
        if self.key is not None:
            self.plane.admission.leave(self.key)
        self.plane.in_flight.discard(self)


