"""The engine's side of a call: relay what comes back, hold its end until the call is durable, go elsewhere when the engine fails."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from slipstream_proxy.data import translated
from slipstream_proxy.data.callstate import CallState
from slipstream_proxy.data.plane import Replay
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.dialects.base import Events

if TYPE_CHECKING:
    from slipstream_proxy.data.http1 import ResponseHead

log = logging.getLogger(__name__)

MAX_TRIES = 3


class Reply(CallState):
    """A ``Receiver`` of the engine's reply; what the client shall get goes to its ``Sink``."""

    __slots__ = ()

    def _send(self, *, fresh: bool = False) -> None:
        raise NotImplementedError

    def up_head(self, head: ResponseHead) -> None:
        self.head = head
        self.first = time.time()
        if self.plane.live.down and self.route.kind != "upstream":
            self.plane.live.mark_up(self.upstream)
        self.stream = head.status == 200 and head.content_type.startswith(b"text/event-stream")
        if self.stream:
            self.events = Events()
            self.relayed = True
            self.sink.send_head(head.status, self._block())

    def up_body(self, data: bytes) -> None:
        self.parts.append(data)
        events = self.events
        if events is None:
            return
        part: bytes | None
        try:
            if events.single(data):
                part = self._shown(data)
            else:
                part = b"".join([shown for event in events.feed(data) if (shown := self._shown(event)) is not None])
        except Exception:
            log.exception("an event could not be read; relayed as it came")
            part = data if self.back is None else None
        if part and not self.ended:
            if self.request.idempotency is not None:
                self.kept.append(part)
            self.sink.send_part(part)

    def _shown(self, event: bytes) -> bytes | None:
        dialect = self.dialect
        if self.back is not None:
            return translated.event(self, self._renamed(event))
        if self.terminal or dialect.terminal(event):
            self.terminal = True
            self.held.append(self._renamed(event))
            return None
        if self.hide is not None:
            shown = dialect.event(event, self.hide)
            if shown is None:
                return None
            event = shown
        return self._renamed(event)

    def _renamed(self, text: bytes) -> bytes:
        if self.names is None:
            return text
        compact, client, spaced, client_spaced, engines, clients = self.names
        changed = text.replace(compact, client, 1)
        if changed is text:
            changed = text.replace(spaced, client_spaced, 1)
        if changed is text and b'"error"' in text:  # an error in a stream
            changed = text.replace(engines, clients)
        return changed

    def up_end(self) -> None:
        self.sent = None
        self.replied = time.time()
        if self.ended:
            return
        reply = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        head = self.head
        assert head is not None
        if self.back is not None and translated.refused(self, head.status):
            self._send_again()
            return
        try:
            if self.stream:
                assert self.events is not None
                if self.events.tail and self.back is None:
                    self.held.append(self.events.tail)
                shown = b"".join(self.held)
                outcome = "ok" if self.terminal else "error"
            else:
                shown = reply
                if self.back is not None and head.status == 200:
                    shown = self.back.whole(self._renamed(reply))
                elif head.status == 200:
                    shown = self._renamed(self.dialect.whole(reply, self.hide) if self.hide is not None else reply)
                elif self.names is not None:
                    shown = reply.replace(self.names[4], self.names[5])
                outcome = "ok" if head.status < 400 else "error"
        except Exception:
            log.exception("a reply could not be read; relayed as it came")
            if self.back is not None:
                self._refuse_unread(reply)
                return
            shown, outcome = reply, "ok"
        if self.tags.done and outcome == "ok" and self.episode is not None:
            self.plane.episodes.end(self.episode)
        if self.turn is not None:
            self._remember(reply if self.back is None else b"".join((*self.back.shown, shown)), outcome)
        self.shown, self.outcome = shown, outcome
        self._record(reply, head.status, outcome, self._deliver)

    def _deliver(self, _ok: bool) -> None:
        """Durable (or given up): the reply's end may leave."""
        if self.ended:
            return
        head, shown, outcome = self.head, self.shown, self.outcome
        assert head is not None
        idempotency = self.request.idempotency
        if idempotency is not None and self.key is not None and outcome == "ok":
            replay = Replay(
                self.bodyhash, head.status, self._block(), b"".join((*self.kept, shown)), stream=self.stream
            )
            self.plane.replays.put(self.key.id, idempotency, replay)
        self._count(head.status, outcome)
        self._end()
        if self.stream:
            self.sink.send_end(shown)
        else:
            self.sink.send_whole(head.status, self._block(), shown)

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
            self._send_again(fresh=kind == "stale")
            return
        log.warning("call %s: %s", self.id, why)
        if self.relayed:
            self._broken(why)
            return
        status = {"timeout": 504, "connect": 503}.get(kind, 502)
        refused = Refused(status, f"the model's server cannot answer: {why}", retry_after=1.0)
        self.head = None
        self._record(b"", status, "error", lambda _ok: self._refuse(refused))

    def _send_again(self, *, fresh: bool = False) -> None:
        try:
            self._send(fresh=fresh)
        except Exception:
            log.exception("a call could not be sent again")
            self._refuse(Refused(502, "the proxy failed at this request"))

    def _refuse_unread(self, reply: bytes) -> None:
        """A reply that its format cannot say."""
        refused = Refused(502, "the model's reply cannot be read")
        self._record(reply, 502, "error", lambda _ok: self._refuse(refused))

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
        waiting = (
            sent is None and self.head is not None
        )  # only its durability was still awaited: it is recorded already
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
