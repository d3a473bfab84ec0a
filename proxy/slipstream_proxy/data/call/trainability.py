"""The reply header that says whether a call can be trained on, as far as its request tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.dialects.sampling import untrainable

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall

_YES: Final = b"x-slipstream-trainable: yes\r\n"


class Trainability(CallStep):
    """``x-slipstream-trainable: yes``, or ``no; <reason>`` with the reason that ``slipstream status`` counts.

    Replies of trained models have it. A reply may still be lost to training for what it is itself, such as a stream
    that breaks off.
    """

    def response_head(self, call: ActiveCall, fields: bytes) -> bytes:
        head = call.reply.head
        if head is None or head.status != 200 or call.target.kind != "trained" or call.split == "off":
            return fields
        reason = _reason(call)
        return fields + (_YES if reason is None else b"x-slipstream-trainable: no; %b\r\n" % reason.encode())


def _reason(call: ActiveCall) -> str | None:
    if call.split == "eval":
        return "split eval"
    payload = call.payload
    return (untrainable(payload, trust=call.target.trust) if payload is not None else None) or call.note
