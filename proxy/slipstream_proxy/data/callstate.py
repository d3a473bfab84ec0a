"""What every part of a call shares: its state, its record, its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from slipstream_proxy.data.call_log import log_call
from slipstream_proxy.data.episodes import Episode, Pinned, new_id
from slipstream_proxy.data.identity import Tags
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.data.receiver import Receiver
from slipstream_proxy.data.record import make_head, make_texts
from slipstream_proxy.data.refused import Refused
from slipstream_proxy.data.request import Head, Sink
from slipstream_proxy.data.routing import Route
from slipstream_proxy.dialects.base import Back, Events, Hide, Turn, dumps
from slipstream_proxy.records import Kind

if TYPE_CHECKING:
    from slipstream_proxy.data.http1 import ResponseHead
    from slipstream_proxy.data.receiver import Sent
    from slipstream_proxy.keys import Key

log = logging.getLogger(__name__)

_NO_TAGS: Final = Tags()
_NO_ROUTE: Final = Route("base", "")
_JSON: Final = b"content-type: application/json\r\n"
_CALL: Final = Kind.CALL

_adapter_lines: Final[dict[str, bytes]] = {}


def _adapter_line(name: str) -> bytes:
    """The header that says which adapter answered; whatever a name holds, it is one line."""
    shown = name.encode("ascii", "replace").replace(b"\n", b"?").replace(b"\r", b"?")
    line = b"x-slipstream-adapter: %b\r\n" % shown
    if len(_adapter_lines) < 1024 and len(name) < 256:
        _adapter_lines[name] = line
    return line


Names = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""The engine's and the client's name of a model: as a compact and a spaced JSON member, and as JSON text without its quotes."""

_names: Final[dict[tuple[str, str], Names]] = {}


def renaming(engine: str, client: str) -> Names:
    """What replaces what in a reply."""
    found = _names.get((engine, client))
    if found is None:
        ours, theirs = dumps(engine), dumps(client)
        compact, spaced = b'"model":', b'"model": '
        found = (compact + ours, compact + theirs, spaced + ours, spaced + theirs, ours[1:-1], theirs[1:-1])
        if len(_names) < 1024 and len(client) < 256:
            _names[(engine, client)] = found
    return found


class CallState(Receiver):
    """Of one call. ``ended``: its client has its answer, or is gone."""

    __slots__ = (
        "adapter",
        "back",
        "body",
        "bodyhash",
        "client",
        "dialect",
        "ended",
        "episode",
        "events",
        "first",
        "forwarded",
        "head",
        "held",
        "hide",
        "id",
        "kept",
        "key",
        "names",
        "note",
        "outcome",
        "parts",
        "pin",
        "plain",
        "plane",
        "relayed",
        "replied",
        "request",
        "route",
        "sent",
        "servers",
        "shown",
        "sink",
        "span",
        "started",
        "stream",
        "tags",
        "terminal",
        "text",
        "tries",
        "turn",
        "upstream",
    )

    def __init__(self, plane: Plane, request: Head, body: bytes, sink: Sink) -> None:
        self.plane, self.request, self.body, self.sink = plane, request, body, sink
        self.dialect = request.dialect
        self.started = time.time()
        self.id = new_id(self.started)
        self.key: Key | None = None
        self.episode: Episode | None = None
        self.pin: Pinned | None = None
        self.note: str | None = None
        self.names: Names | None = None
        self.back: Back | None = None
        """Asked as a chat completion: this makes the reply of it; ``plain`` is what the client asked."""
        self.plain: dict[str, Any] | None = None
        self.hide: Hide | None = None
        self.events: Events | None = None
        self.head: ResponseHead | None = None
        self.sent: Sent | None = None
        self.parts: list[bytes] = []
        self.held: list[bytes] = []
        self.kept: list[bytes] = []
        self.servers: list[str] = []
        self.first: float | None = None
        self.forwarded = self.replied = 0.0
        self.span: Any = None
        self.stream = self.terminal = self.ended = self.relayed = False
        self.tries = 0
        self.upstream = self.adapter = self.client = self.bodyhash = self.outcome = ""
        self.shown = b""
        """What of a whole reply its client gets, or of a stream what is held until it is durable."""
        self.tags = _NO_TAGS
        self.turn: Turn | None = None
        self.route: Route = _NO_ROUTE
        self.text: dict[str, Any] | None = None

    @property
    def stored(self) -> bool:
        """False for ``split: off``."""
        return (self.tags.split or (self.episode.split if self.episode is not None else "")) != "off"

    def _block(self) -> bytes:
        """The reply's header lines: the engine's and ours."""
        block = self.head.block if self.head is not None else _JSON
        if self.episode is not None and self.stored:
            block = b"%bx-slipstream-episode: %b\r\nx-slipstream-call: %b\r\n" % (
                block,
                self.episode.id.encode(),
                self.id.encode(),
            )
        if self.adapter:
            block += _adapter_lines.get(self.adapter) or _adapter_line(self.adapter)
        return block

    def _refuse(self, e: Refused) -> None:
        if self.ended:
            return
        self.plane.metrics.add("slipstream_requests_refused_total", f'status="{e.status}"')
        self._count(e.status, "error")
        self._end()
        self.head = None
        block = (self._block() if self.tries else _JSON) + b"".join([b"%b\r\n" % line for line in e.fields])
        self.sink.send_whole(e.status, block, self.dialect.error(e.status, e.message, e.kind, e.param))

    def _remember(self, reply: bytes, outcome: str) -> None:
        if self.turn is not None and outcome == "ok" and self.episode is not None and not self.episode.done:
            self.plane.episodes.remember(self.episode, self.turn, self.dialect.said(reply, stream=self.stream))

    def _record(self, reply: bytes, status: int, outcome: str, done: Callable[[bool], None] | None) -> None:
        plane = self.plane
        if self.episode is None or self.key is None or not self.stored:
            if done:
                done(True)
            return
        try:
            request, note, tags = self.body, self.note, None
            if plane.redact is not None:
                tags = dict(self.episode.tags)
                request, reply, redacted = make_texts(plane.redact, request, reply, tags)
                note = redacted or note
            common, head = make_head(self, status, outcome, note, tags)
        except Exception:
            log.exception("a call could not be recorded")
            plane.metrics.add("slipstream_capture_lost_total")
            if done:
                done(False)
            return
        plane.spool.append(_CALL, head, request, reply, done, common)

    def _count(self, status: int, outcome: str) -> None:
        plane = self.plane
        if outcome != "ok" and self.turn is not None and self.episode is not None:
            plane.episodes.failed(self.episode.name[0], self.bodyhash, self.episode)
        plane.metrics.call(self, status, outcome)
        if plane.debug:
            log_call(self, status, outcome)
        if plane.tracing is not None:
            plane.tracing.end(self, status, outcome)

    def _end(self) -> None:
        self.ended = True
        if self.key is not None:
            self.plane.admission.leave(self.key)
        self.plane.in_flight.discard(self)
