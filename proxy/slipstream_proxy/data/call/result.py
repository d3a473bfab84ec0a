"""What record, metrics, traces and log see of a call: its state, to be read and not to be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.redaction import Redaction


class CallResult:
    """A call as it was when its reply ended. Times are seconds since the epoch."""

    def __init__(self, call: Call, redaction: Redaction | None = None) -> None:
        reply = call.reply
        self.id: Final = call.asked.id
        self.key: Final = call.asked.key
        self.request: Final = call.asked.request
        self.dialect: Final = call.asked.dialect
        self.body_hash: Final = call.asked.body_hash
        self.conversation: Final = call.asked.turn is not None
        self.tags: Final = call.asked.tags
        self.episode: Final = call.asked.episode
        self.split: Final = call.asked.split
        self.model: Final = call.asked.model if redaction is None else redaction.text("model", call.asked.model)
        self.target: Final = call.asked.target
        self.pin: Final = call.route.pin
        adapter = call.route.adapter
        if redaction is not None and call.asked.target.kind != "trained":  # it is what the client asked for
            adapter = redaction.text("model", adapter)
        self.adapter: Final = adapter
        self.upstream: Final = call.route.upstream
        self.tries: Final = call.route.tries
        self.payload: Final = call.route.payload
        self.through_chat: Final = call.route.back is not None
        self.prefixes: Final = call.route.prefixes
        self.note: Final = call.route.note
        self.started: Final = call.asked.started
        self.forwarded: Final = call.route.forwarded
        self.first: Final = reply.first
        self.replied: Final = reply.replied
        self.stream: Final = reply.stream
        self.reply: Final = reply
