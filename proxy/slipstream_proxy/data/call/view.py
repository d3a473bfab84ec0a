"""What record, metrics, traces and log see of a call: its state, to be read and not to be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall


class CallView:
    """A call as it was when its reply ended. Times are seconds since the epoch."""

    __slots__ = (
        "adapter",
        "body_hash",
        "conversation",
        "dialect",
        "episode",
        "first",
        "forwarded",
        "id",
        "key",
        "model",
        "note",
        "payload",
        "pin",
        "prefixes",
        "replied",
        "reply",
        "request",
        "split",
        "started",
        "stream",
        "tags",
        "target",
        "through_chat",
        "tries",
        "upstream",
    )

    def __init__(self, call: ActiveCall) -> None:
        reply = call.reply
        self.id: Final = call.id
        self.key: Final = call.key
        self.request: Final = call.request
        self.dialect: Final = call.dialect
        self.body_hash: Final = call.body_hash
        self.conversation: Final = call.turn is not None
        self.tags: Final = call.tags
        self.episode: Final = call.episode
        self.split: Final = call.split
        self.model: Final = call.model
        self.target: Final = call.target
        self.pin: Final = call.pin
        self.adapter: Final = call.adapter
        self.upstream: Final = call.upstream
        self.tries: Final = call.tries
        self.payload: Final = call.payload
        self.through_chat: Final = call.back is not None
        self.prefixes: Final = call.prefixes
        self.note: Final = call.note
        self.started: Final = call.started
        self.forwarded: Final = call.forwarded
        self.first: Final = reply.first
        self.replied: Final = reply.replied
        self.stream: Final = reply.stream
        self.reply: Final = reply
