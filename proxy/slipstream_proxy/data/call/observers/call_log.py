"""A line for each call, at level debug: what happened, never what was said."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from slipstream_proxy.data.call.step import CallStep

if TYPE_CHECKING:
    from slipstream_proxy.data.call.result import CallResult

log = logging.getLogger(__name__)


class CallLog(CallStep):
    """``log_call`` for each call that ended."""

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        log_call(call, status, outcome)


def log_call(call: CallResult, status: int, outcome: str) -> None:
    """``request_id`` is the call's id: ``x-slipstream-call``, the engine's ``X-Request-Id``, the store's ``id``."""
    asked, reply, pin = call.asked, call.reply, call.route.pin
    episode = asked.episode
    fields = {
        "request_id": asked.id,
        "episode": episode.id if episode is not None else None,
        "key": asked.key.id if asked.key is not None else None,
        "format": asked.dialect.name,
        "adapter": pin.adapter if pin is not None else asked.target.kind,
        "status": status,
        "outcome": outcome,
        "stream": reply.stream,
        "seconds": round(time.time() - asked.started, 6),
        "first_byte": round(reply.first - asked.started, 6) if reply.first is not None else None,
        "upstream": call.route.upstream or None,
        "tries": call.route.tries,
    }
    log.debug("call", extra={k: v for k, v in fields.items() if v is not None})
