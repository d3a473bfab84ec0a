"""One captured call, from its request's bytes to its record.

The methods stand in the order of a call's way, from ``begin`` to ``end``. Then comes what can go wrong.
All of it runs in callbacks of the client's and the engine's connections. Nothing may raise into a transport: the
client gets an error of its own format instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slipstream.shared.tenant_names import engine_name
from slipstream_proxy.data.call.parts import Call
from slipstream_proxy.data.call.payload import read_payload
from slipstream_proxy.data.call.reply import EngineReply
from slipstream_proxy.data.call.result import CallResult
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.data.wire.http1 import GUARD_LINES, digits
from slipstream_proxy.dialects.base import dumps, is_done, is_error

if TYPE_CHECKING:
    from slipstream_proxy.data.call.services import Services
    from slipstream_proxy.data.wire.http1 import ResponseHead
    from slipstream_proxy.data.wire.receiver import Sent
    from slipstream_proxy.data.wire.request import RequestHead
    from slipstream_proxy.data.wire.sink import Sink
    from slipstream_proxy.json_types import JsonObject
    from slipstream_proxy.log.spool import Done

log = logging.getLogger(__name__)

_now: Final[Callable[[], float]] = time.time

MAX_TRIES = 3
UNREADABLE_TEXT = "the body is not a JSON object, or is too deeply nested to read its model"
UNTRANSLATABLE_TEXT = "the model's reply cannot be expressed in this format"
_JSON: Final = b"\r\n".join([b"content-type: application/json", *GUARD_LINES, b""])


KEPT_REPLY_FIELDS: Final = ("previous_response_id", "conversation", "background")
KEPT_REPLY_TEXT = (
    "engines share stored replies among all tenants, so nobody may ask for one: send the whole conversation in input"
)
CACHE_SALT_LIMIT = 128
"""Characters."""


def keep_apart(payload: JsonObject, tenant: str, kind: str) -> None:
    """No prompt's cache is another tenant's: how fast a call is would tell what others ask. vLLM takes no salt that
    has a slash, or more than 128 characters. No ``tenant``: what has no salt shares the cache of those who have none.
    """
    salt = payload.get("cache_salt")
    apart = isinstance(salt, str) and salt.startswith(f"{tenant}.")
    if kind == "vllm" and (tenant or salt) and not apart:
        payload["cache_salt"] = f"{tenant}.{salt or ''}"[:CACHE_SALT_LIMIT]


def asks_kept(payload: JsonObject) -> bool:
    """Compiled, a loop over ``KEPT_REPLY_FIELDS`` costs each call a thousand instructions more."""
    return "previous_response_id" in payload or "conversation" in payload or "background" in payload


def refuse_kept(payload: JsonObject | None) -> None:
    """Engines keep replies for all tenants alike. Raises ``RequestRefused`` where one is asked for, or may be."""
    if payload is None:
        raise RequestRefused(400, UNREADABLE_TEXT)
    for name in KEPT_REPLY_FIELDS:
        if payload.get(name):
            raise RequestRefused(400, KEPT_REPLY_TEXT, param=name)


class ActiveCall(Call):
    """A call that is being answered: it receives the engine's reply, and its ``Sink`` gets what is for the client."""

    def __init__(self, services: Services, request: RequestHead, body: bytes, sink: Sink) -> None:
        super().__init__(request, body, sink)
        self.services = services
        self.result: CallResult | None = None
        self.ended = False
        """The client has its answer, or is gone."""
        self._status, self._outcome = 0, ""
        """Of a reply whose end waits for its record."""

    def begin(self) -> None:
        try:
            if self._ask():
                self._choose()
        except Exception as e:
            self._failed(e)

    def go_on(self) -> None:
        """What was waited for is there."""
        try:
            self._choose()
        except Exception as e:
            self._failed(e)

    def _again(self, *, fresh: bool = False) -> None:
        """To the next engine, or to the same one."""
        self.reply = EngineReply()
        try:
            self._send(fresh=fresh)
        except Exception as e:
            self._failed(e)

    def _failed(self, e: Exception) -> None:
        if not isinstance(e, RequestRefused):
            log.error("a call could not be relayed", exc_info=e)
            e = RequestRefused(502, "internal error in the proxy")
        elif not self.route.tries:
            self.services.metrics.turn_away(e.status)
        self.refuse(e)

    def _ask(self) -> bool:
        """Who asks what. False: a step has answered."""
        services = self.services
        key, suffix = services.admission.caller(self.asked.request)
        if services.tenants is not None and (key.tenant or services.may_name_tenants(self.asked.request.headers)):
            services = self.services = services.tenants.of(key, self.asked.request.headers)
        services.admission.enter(key)
        payload = read_payload(self.route.body)
        if payload is not None:
            self.asked.dialect.read_path(self.asked.request.path, payload)
        self.asked.admit(key, suffix, payload)
        if (payload is None or asks_kept(payload)) and services.has_tenants:
            refuse_kept(payload)
        self.route.ask(payload, None)
        services.in_flight.add(self)
        return all(not step.request(self) for step in services.steps.request)

    def _choose(self) -> None:
        """Adapter and engine; then forward. Runs again when something had to be waited for."""
        if self.ended:
            return
        for step in self.services.steps.choose:
            if not step.choose(self):
                return
        self._send()

    def _send(self, *, fresh: bool = False) -> None:
        services, asked, route = self.services, self.asked, self.route
        payload = route.payload
        if payload is not None:
            if asked.target.kind != "trained" or "model" in payload or route.adapter != services.default_model:
                payload["model"] = route.adapter
            if services.tenant and asked.target.kind != "upstream":
                payload["model"] = engine_name(route.adapter, services.tenant)
                keep_apart(payload, services.tenant, services.live.kind)
            elif "cache_salt" in payload and services.has_tenants:
                keep_apart(payload, "", services.live.kind)
            route.write(dumps(payload))
        upstream = route.next()
        pool = services.pools.of(upstream)
        path = route.path
        if asked.target.kind == "upstream" and pool.prefix.endswith(b"/v1"):
            path = path.removeprefix("/v1")  # a base URL as the OpenAI clients write it
        fields = asked.request.block
        for step in services.steps.forward:
            fields = step.forward(self, fields)
        start, key, length = (
            pool.start(path),
            services.pools.authorization(asked.target, upstream),
            digits(len(route.body)),
        )
        data = b"%b%b%bContent-Length: %b\r\n\r\n%b" % (start, fields, key, length, route.body)
        if services.live.trouble:
            services.live.try_out(upstream, asked.id)
        route.forward(_now())
        if asked.episode is not None:
            asked.episode.engine = upstream
        services.live.selection.begin(upstream)
        route.hold(pool.send(data, self, fresh=fresh))

    def on_headers_complete(self, head: ResponseHead) -> None:
        live = self.services.live
        self.reply.begin(
            head, _now(), self.asked.dialect if self.asked.turn is not None and self.route.back is None else None
        )
        if live.trouble:
            live.mark_reached(self.route.upstream)
        if self.reply.stream:
            self.reply.relay()
            self.sink.send_head(head.status, self.response_fields())
            self.asked.forget_payload()
            self.route.forget_payload()

    def on_body(self, data: bytes) -> None:
        self.reply.add(data)
        events = self.reply.events
        if events is None:
            return
        if self.services.live.trying and self.reply.lasts(_now()):
            self.services.live.mark_up(self.route.upstream, self.asked.id)
        if self.route.back is not None:
            self._translate([data] if events.single(data) else events.feed(data))
            return
        part: bytes | None = data
        try:
            if events.single(data):
                part = self._event(data)
            else:
                part = b"".join([shown for event in events.feed(data) if (shown := self._event(event)) is not None])
        except Exception:
            log.exception("an event could not be read; relayed as it came")
            self.reply.stop_hearing()  # it may have missed events
        self._send_part(part)

    def _translate(self, events: list[bytes]) -> None:
        """Events on their way to the client's format. After one that it has no words for comes an error."""
        parts, wrong = [], False
        for event in events:
            try:
                shown = self._event(event)
            except Exception:
                log.exception(
                    "call %s: the reply cannot be said in the format %s", self.asked.id, self.asked.dialect.name
                )
                wrong = True
                break
            if shown is not None:
                parts.append(shown)
        self._send_part(b"".join(parts))
        if wrong:
            self._give_up()

    def _send_part(self, part: bytes | None) -> None:
        if part and not self.ended:
            if self.asked.request.idempotency is not None or (
                self.route.back is not None and self.asked.turn is not None
            ):
                self.reply.keep(part)
            self.sink.send_part(part)

    def _drop_sent(self) -> Sent | None:
        """What was sent to the engine, which nobody waits for any more."""
        sent = self.route.sent
        self.route.hold(None)
        if sent is not None:
            sent.drop()
            self.services.live.selection.end(self.route.upstream)
            self.services.live.release(self.route.upstream, self.asked.id)
        return sent

    def _give_up(self) -> None:
        """The engine goes on with a reply that cannot be said in the client's format."""
        if self.ended:
            return
        self._drop_sent()
        end = self._error_event(502, UNTRANSLATABLE_TEXT, "engine_error")
        self._record(self.reply.body(), 502, "error", None)
        self._tell(502, "error")
        self.end()
        self.sink.send_end(end)

    def _error_event(self, status: int, message: str, kind: str) -> bytes:
        """What ends a stream that has begun."""
        back = self.route.back
        if back is not None:
            return back.error_event({"message": message, "type": kind, "code": status})
        return self.asked.dialect.error_event(status, message, kind, self.reply.body())

    def _event(self, event: bytes) -> bytes | None:
        """What the client gets of an event now. The stream's end is held until the call is durable."""
        shown, reply = event, self.reply
        if is_error(event):
            reply.fail()
        for step in self.services.steps.event:
            changed = step.event(self, shown)
            if changed is None:
                return None
            shown = changed
        if reply.terminal or (self.asked.dialect.terminal(event) if self.route.back is None else is_done(event)):
            reply.hold_end(shown)
            return None
        return shown

    def on_message_complete(self) -> None:
        self.route.hold(None)
        self.services.live.selection.end(self.route.upstream)
        self.reply.finish(_now())
        head, live = self.reply.head, self.services.live
        assert head is not None
        if live.trouble or live.trying:
            live.finished(self.route.upstream, self.asked.id, well=head.status < 400 and not self.reply.failed)
        if self.ended:
            return
        if head.status >= 400 and not self.reply.relayed:
            for step in self.services.steps.rejected:
                if step.rejected(self, head.status):
                    self._again()
                    return
        body = self.reply.body()
        try:
            shown, outcome = (
                self.reply.end(keep_tail=self.route.back is None)
                if self.reply.stream
                else self._whole(head.status, body)
            )
        except Exception:
            log.exception("a reply could not be read; relayed as it came")
            if self.route.back is not None:  # it cannot be said in the client's format
                self._refuse_recorded(body, RequestRefused(502, UNTRANSLATABLE_TEXT))
                return
            shown, outcome = body, "ok"
        back = self.route.back
        if self.reply.stream and back is not None and not (back.done or back.failed):
            shown += self._error_event(502, "the model's reply has no end", "engine_error")
        self.reply.show(shown)
        for step in self.services.steps.replied:
            step.replied(self, outcome, body)
        self._status, self._outcome = head.status, outcome
        self._record(body, head.status, outcome, self._deliver)

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
        alone = len(self.services.in_flight) == 1
        self.services.recorder.record(self.look(), status, outcome, self.route.body, reply, done, alone=alone)

    def _refuse_recorded(self, reply: bytes, e: RequestRefused) -> None:
        """The client gets the error once the call is recorded."""
        self._record(reply, e.status, "error", lambda _ok: self.refuse(e))

    def _deliver(self, _ok: bool) -> None:
        """The end of the reply may leave."""
        if self.ended:
            return
        status, outcome = self._status, self._outcome
        for step in self.services.steps.recorded:
            step.recorded(self, status, outcome)
        self._tell(status, outcome)
        self.end()
        if self.reply.stream:
            self.sink.send_end(self.reply.shown)
        else:
            self.sink.send_whole(status, self.response_fields(), self.reply.shown)

    def look(self) -> CallResult:
        if self.result is None:
            self.result = CallResult(self, self.services.redaction)
        return self.result

    def _tell(self, status: int, outcome: str) -> None:
        """Everybody who looks on: how it ended."""
        result = self.look()
        for step in self.services.steps.ended:
            step.ended(result, status, outcome)

    def end(self) -> None:
        self.ended = True
        if self.asked.key is not None:
            self.services.admission.leave(self.asked.key)
        self.services.in_flight.discard(self)

    def refuse(self, e: RequestRefused) -> None:
        if self.ended:
            return
        self.services.metrics.add("slipstream_requests_refused_total", f'status="{e.status}"')
        self._tell(e.status, "error")
        self.end()
        self.reply = EngineReply()
        block = (self.response_fields() if self.route.tries else _JSON) + b"".join(
            [b"%b\r\n" % line for line in e.fields]
        )
        self.sink.send_whole(e.status, block, self.asked.dialect.error(e.status, e.message, e.kind, e.param))

    def on_error(self, why: str, *, kind: str) -> None:
        self.route.hold(None)
        self.services.live.selection.end(self.route.upstream)
        if self.ended:
            return
        if self.asked.target.kind != "upstream":
            self.services.live.failed(
                self.route.upstream, kind, self.asked.id, silent=self.services.pools.silent(self.route.upstream)
            )
        elsewhere = self.route.tries < min(len(self.route.servers), MAX_TRIES)
        if not elsewhere and not self.reply.relayed and kind == "connect":
            elsewhere = any(step.rejected(self, 503) for step in self.services.steps.rejected)
        if (
            not self.reply.relayed
            and kind != "timeout"
            and (elsewhere or (kind == "stale" and self.route.tries <= MAX_TRIES))
        ):
            self.services.metrics.add("slipstream_upstream_retries_total")
            if kind == "stale":
                self.route.same_again()
            self._again(fresh=kind == "stale")
            return
        log.warning("call %s: %s", self.asked.id, why)
        if self.reply.relayed:
            self._broken(why)
            return
        status = {"timeout": 504, "connect": 503}.get(kind, 502)
        self.reply.forget_head()
        self._refuse_recorded(b"", RequestRefused(status, f"the model's server cannot answer: {why}", retry_after=1.0))

    def _broken(self, why: str) -> None:
        """The engine died in mid-stream. Send an error in the format's shape, and close without a last event."""
        event = self._error_event(502, f"the model's server broke off: {why}", "upstream_error")
        self._record(self.reply.body(), 200, "error", None)
        self._tell(502, "error")
        self.end()
        self.sink.send_part(event)
        self.sink.break_off()

    def client_gone(self) -> None:
        """The client closed: the engine stops, and what there is of the call is recorded."""
        if self.ended:
            return
        sent = self._drop_sent()
        head = self.reply.head
        recorded = sent is None and head is not None  # only its durability was still awaited
        if self.route.tries and not recorded:
            self._record(self.reply.body(), head.status if head else 499, "aborted", None)
        self._tell(499, "aborted")
        self.end()

    def pause(self) -> None:
        if self.route.sent is not None:
            self.route.sent.pause()

    def resume(self) -> None:
        if self.route.sent is not None:
            self.route.sent.resume()
