"""The reply header that says whether a call can be trained on, as far as its request tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.dialects.sampling import untrainable_within

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.engines.live import LiveView

_YES: Final = b"x-slipstream-trainable: yes\r\n"
_UNKNOWN: Final = b"x-slipstream-trainable: unknown; the engine has not said yet what it is\r\n"


class Trainability(CallStep):
    """``x-slipstream-trainable: yes``, or ``no; <reason>`` with the reason that ``slipstream status`` counts.
    ``unknown`` until the engine has said what it is.

    Replies of trained models have it. A reply may still be lost to training for what it is itself, such as a stream
    that breaks off.
    """

    def __init__(self, live: LiveView) -> None:
        self._live = live

    def response_head(self, call: Call, fields: bytes) -> bytes:
        head = call.reply.head
        if head is None or head.status != 200 or call.asked.target.kind != "trained":
            return fields
        episode = call.asked.episode
        forgotten = episode is not None and episode.is_among(self._live.forgotten)
        reason = "forgotten" if forgotten else _reason(call)
        if reason is None:
            return fields + (_YES if self._live.kind_known else _UNKNOWN)
        return b"%bx-slipstream-trainable: no; %b\r\n" % (fields, reason.encode())


def _reason(call: Call) -> str | None:
    if call.asked.split == "off":
        return "capture off" if call.asked.tags.captured is False else "split off"
    if call.asked.split == "eval":
        return "split eval"
    payload = call.route.payload
    if call.route.note is not None or payload is None:
        return call.route.note
    return untrainable_within(payload, (), trust=call.asked.target.trust)
