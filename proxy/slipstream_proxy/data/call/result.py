"""What record, metrics, traces and log see of a call: its state, to be read and not to be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.redaction import Redaction


class CallResult:
    """A call's parts as they were when its reply ended, and the names in it that may be told.

    Times are seconds since the epoch.
    """

    def __init__(self, call: Call, redaction: Redaction | None = None) -> None:
        self.asked: Final = call.asked
        self.route: Final = call.route
        self.reply: Final = call.reply
        self.model: Final = call.asked.model if redaction is None else redaction.text("model", call.asked.model)
        adapter = call.route.adapter
        if redaction is not None and call.asked.target.kind != "trained":  # it is what the client asked for
            adapter = redaction.text("model", adapter)
        self.adapter: Final = adapter
