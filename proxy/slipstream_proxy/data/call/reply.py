"""An engine's reply while it arrives."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

from slipstream_proxy.dialects.base import EventCutter

if TYPE_CHECKING:
    from slipstream_proxy.data.wire.http1 import ResponseHead
    from slipstream_proxy.dialects.base import Dialect, EventHider, Speech

MIN_COMPUTING_S: Final = 1.0
"""Seconds after its head at which a stream that goes on shows that the model computes. A server sends the head by
itself, and may have had the first token.
"""


class EngineReply:
    """One engine's answer to one attempt. A call that is sent again starts with a new one."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.first: float | None = None
        """When the head came, in seconds since the epoch; ``replied`` is when the end came, 0 before."""
        self.replied = 0.0
        self.count = 0
        """In how many parts the body came."""
        self._first_part = b""
        self._body: BytesIO | None = None
        """All parts, from the second one on. It grows in place and gives its bytes away without a copy; a list of
        parts would be held beside what they are joined to.
        """
        self.stream = False
        self.events: EventCutter | None = None
        """Cuts a stream into its events."""
        self.speech: Speech | None = None
        """Hears what the stream says."""
        self.hider: EventHider | None = None
        """Hides of its events what the client did not ask for."""
        self.held: list[bytes] = []
        """The end of a stream, which leaves when the call is durable."""
        self.relayed = False
        """The client has got a part of it."""
        self.kept: list[bytes] = []
        """The parts of a stream that the client got, where they are asked for later."""
        self.shown = b""
        """What the client gets of a whole reply, or the held end of a stream."""
        self.start = self.shown_start = b""
        """How an event of the stream begins, up to the model's name, and as the client gets it."""
        self.failed = False
        """The stream says that the engine failed."""
        self.terminal = False
        """The stream's last event has come."""

    def begin(self, head: ResponseHead, now: float, hearing: Dialect | None = None) -> None:
        """``hearing``: of what format a stream is whose words are asked for at its end."""
        self.head = head
        self.first = now
        self.stream = head.status == 200 and head.streams
        if self.stream:
            self.events = EventCutter()
            if hearing is not None:
                self.speech = hearing.speech()

    def begin_events(self, start: bytes, shown: bytes) -> None:
        self.start, self.shown_start = start, shown

    def hide_with(self, hider: EventHider) -> EventHider:
        self.hider = hider
        return hider

    def relay(self) -> None:
        self.relayed = True

    def keep(self, part: bytes) -> None:
        self.kept.append(part)

    def show(self, shown: bytes) -> None:
        self.shown = shown

    def stop_hearing(self) -> None:
        self.speech = None

    def fail(self) -> None:
        self.failed = True

    def hold_end(self, event: bytes) -> None:
        """A part of the stream's end."""
        self.terminal = True
        self.held.append(event)

    def finish(self, now: float) -> None:
        self.replied = now

    def forget_head(self) -> None:
        """Nothing of it was relayed, and the client gets an error in its place."""
        self.head = None

    def lasts(self, now: float) -> bool:
        """Whether a part that comes now shows that the model computes."""
        return self.first is not None and now - self.first >= MIN_COMPUTING_S

    def add(self, data: bytes) -> None:
        """The next part of the body, without its framing."""
        self.count += 1
        if self._body is not None:
            self._body.write(data)
        elif self.count == 1:
            self._first_part = data
        else:
            self._body = BytesIO()
            self._body.write(self._first_part)
            self._body.write(data)
            self._first_part = b""

    def body(self) -> bytes:
        """What came so far, as the engine sent it. Costs no copy."""
        return self._first_part if self._body is None else self._body.getvalue()

    def end(self, *, keep_tail: bool) -> tuple[bytes, str]:
        """What was held of a stream, and its outcome. ``keep_tail``: the client gets also what is no whole event."""
        if keep_tail and self.events is not None and self.events.tail:
            self.held.append(self.events.tail)
        return b"".join(self.held), "ok" if self.terminal and not self.failed else "error"
