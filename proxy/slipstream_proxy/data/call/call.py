"""One captured call, from its request's bytes to its record.

The methods stand in the order of a call's way, from ``begin`` to ``end``. Then comes what can go wrong.
All of it runs in callbacks of the client's and the engine's connections. Nothing may raise into a transport: the
client gets an error of its own format instead.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.payload import read_payload
from slipstream_proxy.data.call.reply import EngineReply
from slipstream_proxy.data.call.view import CallView
from slipstream_proxy.data.engines.models import ModelTarget
from slipstream_proxy.data.episode.identity import Tags
from slipstream_proxy.data.episode.ids import new_id
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.http1 import digits
from slipstream_proxy.data.wire.receiver import Receiver, Sent
from slipstream_proxy.dialects.base import dumps, is_done, is_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream_proxy.data.call.payload import Payload
    from slipstream_proxy.data.call.renaming import Names
    from slipstream_proxy.data.call.services import Services
    from slipstream_proxy.data.episode.memory import RunningEpisode
    from slipstream_proxy.data.episode.pins import Pinned
    from slipstream_proxy.data.episode.prompts import Prefixes
    from slipstream_proxy.data.wire.http1 import ResponseHead
    from slipstream_proxy.data.wire.request import RequestHead
    from slipstream_proxy.data.wire.sink import Sink
    from slipstream_proxy.dialects.base import Hide, ReplyTranslator, Turn
    from slipstream_proxy.keys import Key
    from slipstream_proxy.spool import Done

log = logging.getLogger(__name__)

MAX_TRIES = 3
_NO_TAGS: Final = Tags()
_NO_TARGET: Final = ModelTarget("base", "")
_JSON: Final = b"content-type: application/json\r\n"


class ActiveCall(Receiver):
    """A call that is being answered: it receives the engine's reply, and its ``Sink`` gets what is for the client."""

    def __init__(self, services: Services, request: RequestHead, body: bytes, sink: Sink) -> None:
        self.services, self.request, self.body, self.sink = services, request, body, sink
        self.dialect = request.dialect
        self.started = time.time()
        self.id = new_id(self.started)
        self.key: Key | None = None
        self.suffix: str | None = None
        """What stands behind the key's first colon: its tags."""
        self.tags = _NO_TAGS
        self.turn: Turn | None = None
        """The conversation, of a call that does not name its episode."""
        self.body_hash = ""
        self.episode: RunningEpisode | None = None
        self.payload: Payload | None = None
        """The body as it goes to the engine; None: it goes as it came."""
        self.model = ""
        """The client's name for it; ``adapter`` is the engine's."""
        self.target: ModelTarget = _NO_TARGET
        self.pin: Pinned | None = None
        self.adapter = ""
        self.note: str | None = None
        """Why the capture is not whole."""
        self.hide: Hide | None = None
        self.prefixes: Prefixes | None = None
        self.names: Names | None = None
        self.back: ReplyTranslator | None = None
        """Asked as a chat completion: this makes the client's format of the reply. ``plain``: what the client asked."""
        self.plain: Payload | None = None
        self.path = request.path
        self.servers: list[str] = []
        self.upstream = ""
        self.tries = 0
        self.sent: Sent | None = None
        self.forwarded = 0.0
        self.reply = EngineReply()
        self.relayed = False
        """The client has got a part of the reply."""
        self.kept: list[bytes] = []
        """The parts of a stream that the client got, where they are asked for later."""
        self.shown = b""
        """What the client gets of a whole reply, or the held end of a stream."""
        self.view: CallView | None = None
        self.ended = False
        """The client has its answer, or is gone."""

    @property
    def split(self) -> str:
        return self.tags.split or (self.episode.split if self.episode is not None else "")

    def begin(self) -> None:
        self._guarded(self._begin)

    def go_on(self) -> None:
        """What was waited for is there."""
        self._guarded(self._choose)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except RequestRefused as e:
            self.refuse(e)
        except Exception:
            log.exception("a call could not be relayed")
            self.refuse(RequestRefused(502, "the proxy failed at this request"))

    def _begin(self) -> None:
        services = self.services
        key, self.suffix = services.admission.who(self.request.headers)
        services.admission.enter(key)
        self.key = key
        services.in_flight.add(self)
        self.payload = read_payload(self.body)
        for step in services.steps.request:
            if step.request(self):
                return
        self._choose()

    def _choose(self) -> None:
        """Adapter and engine; then forward. Runs again when something had to be waited for."""
        if self.ended:
            return
        for step in self.services.steps.choose:
            if not step.choose(self):
                return
        self._send()

    def _send(self, *, fresh: bool = False) -> None:
        services, payload = self.services, self.payload
        if payload is not None:
            if self.target.kind != "trained" or "model" in payload or self.adapter != services.default_model:
                payload["model"] = self.adapter
            self.body = dumps(payload)
        self.upstream = self.servers[min(self.tries, len(self.servers) - 1)]
        self.tries += 1
        pool = services.pools.of(self.upstream)
        path = self.path
        if self.target.kind == "upstream" and pool.prefix.endswith(b"/v1"):
            path = path.removeprefix("/v1")  # a base URL as the OpenAI clients write it
        fields = self.request.block
        for step in services.steps.forward:
            fields = step.forward(self, fields)
        start, key, length = pool.start(path), services.pools.authorization(self.target), digits(len(self.body))
        data = b"%b%b%bContent-Length: %b\r\n\r\n%b" % (start, fields, key, length, self.body)
        if services.live.trouble:
            services.live.try_out(self.upstream, self.id)
        self.forwarded = time.time()
        self.sent = pool.send(data, self, fresh=fresh)

    def on_headers_complete(self, head: ResponseHead) -> None:
        live = self.services.live
        self.reply.begin(head, time.time(), self.dialect if self.turn is not None and self.back is None else None)
        if live.trouble:
            live.mark_reached(self.upstream)
        if self.reply.stream:
            self.relayed = True
            self.sink.send_head(head.status, self.response_fields())

    def on_body(self, data: bytes) -> None:
        self.reply.add(data)
        events = self.reply.events
        if events is None:
            return
        if self.services.live.trying and self.reply.lasts(time.time()):
            self.services.live.mark_up(self.upstream, self.id)
        part: bytes | None = data if self.back is None else None
        try:
            if events.single(data):
                part = self._event(data)
            else:
                part = b"".join([shown for event in events.feed(data) if (shown := self._event(event)) is not None])
        except Exception:
            log.exception("an event could not be read; relayed as it came")
            self.reply.speech = None  # it may have missed events
        if part and not self.ended:
            if self.request.idempotency is not None or (self.back is not None and self.turn is not None):
                self.kept.append(part)
            self.sink.send_part(part)

    def _event(self, event: bytes) -> bytes | None:
        """What the client gets of an event now. The stream's end is held until the call is durable."""
        shown, self.reply.failed = event, self.reply.failed or is_error(event)
        for step in self.services.steps.event:
            changed = step.event(self, shown)
            if changed is None:
                return None
            shown = changed
        reply = self.reply
        if reply.terminal or (self.dialect.terminal(event) if self.back is None else is_done(event)):
            reply.terminal = True
            reply.held.append(shown)
            return None
        return shown

    def on_message_complete(self) -> None:
        self.sent = None
        self.reply.replied = time.time()
        head, live = self.reply.head, self.services.live
        assert head is not None
        if live.trouble or live.trying:
            live.finished(self.upstream, self.id, well=head.status < 400 and not self.reply.failed)
        if self.ended:
            return
        if head.status >= 400 and not self.relayed:
            for step in self.services.steps.rejected:
                if step.rejected(self, head.status):
                    self.reply = EngineReply()
                    self._guarded(self._send)
                    return
        body = self.reply.body()
        try:
            self.shown, outcome = (
                self.reply.end(keep_tail=self.back is None) if self.reply.stream else self._whole(head.status, body)
            )
        except Exception:
            log.exception("a reply could not be read; relayed as it came")
            if self.back is not None:  # it cannot be said in the client's format
                refused = RequestRefused(502, "the model's reply cannot be read")
                self._record(body, 502, "error", lambda _ok: self.refuse(refused))
                return
            self.shown, outcome = body, "ok"
        status = head.status
        for step in self.services.steps.replied:
            step.replied(self, outcome, body)
        self._record(body, status, outcome, lambda _ok: self._deliver(status, outcome))

    def _whole(self, status: int, body: bytes) -> tuple[bytes, str]:
        for step in self.services.steps.response_body:
            body = step.response_body(self, status, body)
        return body, "ok" if status < 400 else "error"

    def response_fields(self) -> bytes:
        """The header lines for the client: the engine's and ours."""
        head = self.reply.head
        fields = head.block if head is not None else _JSON
        for step in self.services.steps.response_head:
            fields = step.response_head(self, fields)
        return fields

    def _record(self, reply: bytes, status: int, outcome: str, done: Done | None) -> None:
        """``done`` is called when the record is durable, or was given up."""
        self.services.recorder.record(self.look(), status, outcome, self.body, reply, done)

    def _deliver(self, status: int, outcome: str) -> None:
        """The end of the reply may leave."""
        if self.ended:
            return
        for step in self.services.steps.recorded:
            step.recorded(self, status, outcome)
        self._tell(status, outcome)
        self.end()
        if self.reply.stream:
            self.sink.send_end(self.shown)
        else:
            self.sink.send_whole(status, self.response_fields(), self.shown)

    def look(self) -> CallView:
        if self.view is None:
            self.view = CallView(self)
        return self.view

    def _tell(self, status: int, outcome: str) -> None:
        """Everybody who looks on: how it ended."""
        view = self.look()
        for step in self.services.steps.ended:
            step.ended(view, status, outcome)

    def end(self) -> None:
        self.ended = True
        if self.key is not None:
            self.services.admission.leave(self.key)
        self.services.in_flight.discard(self)

    def refuse(self, e: RequestRefused) -> None:
        if self.ended:
            return
        self.services.metrics.add("slipstream_requests_refused_total", f'status="{e.status}"')
        self._tell(e.status, "error")
        self.end()
        self.reply = EngineReply()
        block = (self.response_fields() if self.tries else _JSON) + b"".join([b"%b\r\n" % line for line in e.fields])
        self.sink.send_whole(e.status, block, self.dialect.error(e.status, e.message, e.kind, e.param))

    def on_error(self, why: str, *, kind: str) -> None:
        self.sent = None
        if self.ended:
            return
        if self.target.kind != "upstream":
            self.services.live.failed(self.upstream, kind, self.id, silent=self.services.pools.silent(self.upstream))
        elsewhere = self.tries < min(len(self.servers), MAX_TRIES)
        if not elsewhere and not self.relayed and kind == "connect":
            elsewhere = any(step.rejected(self, 503) for step in self.services.steps.rejected)
        if not self.relayed and kind != "timeout" and (elsewhere or (kind == "stale" and self.tries <= MAX_TRIES)):
            self.services.metrics.add("slipstream_upstream_retries_total")
            if kind == "stale":
                self.tries -= 1
                self.servers = [self.upstream, *self.servers] if self.upstream not in self.servers else self.servers
            self.reply = EngineReply()
            self._guarded(lambda: self._send(fresh=kind == "stale"))
            return
        log.warning("call %s: %s", self.id, why)
        if self.relayed:
            self._broken(why)
            return
        status = {"timeout": 504, "connect": 503}.get(kind, 502)
        refused = RequestRefused(status, f"the model's server cannot answer: {why}", retry_after=1.0)
        self.reply.head = None
        self._record(b"", status, "error", lambda _ok: self.refuse(refused))

    def _broken(self, why: str) -> None:
        """The engine died in mid-stream. Send an error in the format's shape, and close without a last event."""
        message = f"the model's server broke off: {why}"
        self._record(self.reply.body(), 200, "error", None)
        self._tell(502, "error")
        self.end()
        self.sink.send_part(self.dialect.error_event(502, message, "upstream_error"))
        self.sink.break_off()

    def client_gone(self) -> None:
        """The client closed: the engine stops, and what there is of the call is recorded."""
        if self.ended:
            return
        sent, self.sent = self.sent, None
        if sent is not None:
            sent.drop()
            self.services.live.release(self.upstream, self.id)
        head = self.reply.head
        recorded = sent is None and head is not None  # only its durability was still awaited
        if self.tries and not recorded:
            self._record(self.reply.body(), head.status if head else 499, "aborted", None)
        self._tell(499, "aborted")
        self.end()

    def pause(self) -> None:
        if self.sent is not None:
            self.sent.pause()

    def resume(self) -> None:
        if self.sent is not None:
            self.sent.resume()
