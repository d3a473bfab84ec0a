"""The reply header that says whether a call can be trained on, as far as its request tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.dialects.sampling import untrainable_within

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call

_YES: Final = b"x-slipstream-trainable: yes\r\n"


class Trainability(CallStep):
    """``x-slipstream-trainable: yes``, or ``no; <reason>`` with the reason that ``slipstream status`` counts.

    Replies of trained models have it. A reply may still be lost to training for what it is itself, such as a stream
    that breaks off.
    """

    def response_head(self, call: Call, fields: bytes) -> bytes:
        head = call.reply.head
        if head is None or head.status != 200 or call.asked.target.kind != "trained":
            return fields
        reason = _reason(call)
        return fields + (_YES if reason is None else b"x-slipstream-trainable: no; %b\r\n" % reason.encode())


def _reason(call: Call) -> str | None:
    if call.asked.split == "off":
        return "capture off" if call.asked.tags.captured is False else "split off"
    if call.asked.split == "eval":
        return "split eval"
    payload = call.route.payload
    if call.route.note is not None or payload is None:
        return call.route.note
    return untrainable_within(payload, (), trust=call.asked.target.trust)
