"""Steps of a call's way. A header, a filter or a hint is one class with the hooks that it needs, in one file of this
folder.

``plane.py`` lists the steps in their order. A hook that a class does not override costs a call nothing: ``CallSteps``
keeps one list of steps for each hook, with only those that override it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.call.result import CallResult


class CallStep:
    """One thing that happens to calls. A step is shared by all calls of a worker, so what belongs to one call stands
    in the call.

    The hooks are listed in the order in which a call meets them. They may raise ``RequestRefused`` up to and with
    ``forward``.
    """

    __slots__ = ()

    def request(self, call: Call) -> bool:
        """The request was read, and its episode and model are known. True: the step has answered the call."""
        return False

    def choose(self, call: Call) -> bool:
        """Adapter and engine are chosen. False: not yet. The step calls ``call.go_on()`` later; all steps run again."""
        return True

    def forward(self, call: Call, fields: bytes) -> bytes:
        """The header lines for the engine, each with its CRLF."""
        return fields

    def response_head(self, call: Call, fields: bytes) -> bytes:
        """The header lines for the client, each with its CRLF."""
        return fields

    def event(self, call: Call, event: bytes) -> bytes | None:
        """One server-sent event with its blank line; None: the client does not get it."""
        return event

    def response_body(self, call: Call, status: int, body: bytes) -> bytes:
        """A whole reply, which is no stream."""
        return body

    def rejected(self, call: Call, status: int) -> bool:
        """The engine answered with an error (503: or no engine was reached), and nothing was relayed. True: send the
        changed call again.
        """
        return False

    def replied(self, call: Call, outcome: str, body: bytes) -> None:
        """The whole reply is there (``body``: the engine's). The record comes next."""

    def recorded(self, call: Call, status: int, outcome: str) -> None:
        """The record is durable. The end of the reply leaves next."""

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        """The client has its answer, or is gone (``status`` 499). Must not raise."""


class CallSteps:
    """A worker's steps by hook, each in the order given."""

    __slots__ = (
        "choose",
        "ended",
        "event",
        "forward",
        "recorded",
        "rejected",
        "replied",
        "request",
        "response_body",
        "response_head",
    )

    def __init__(self, steps: Sequence[CallStep]) -> None:
        self.request = _with("request", steps)
        self.choose = _with("choose", steps)
        self.forward = _with("forward", steps)
        self.response_head = _with("response_head", steps)
        self.event = _with("event", steps)
        self.response_body = _with("response_body", steps)
        self.rejected = _with("rejected", steps)
        self.replied = _with("replied", steps)
        self.recorded = _with("recorded", steps)
        self.ended = _with("ended", steps)


def _with(hook: str, steps: Sequence[CallStep]) -> list[CallStep]:
    """Those whose class overrides the hook."""
    return [step for step in steps if any(hook in vars(kind) for kind in type(step).__mro__ if kind is not CallStep)]
