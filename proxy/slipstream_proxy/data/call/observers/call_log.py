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
    episode = call.episode
    fields = {
        "request_id": call.id,
        "episode": episode.id if episode is not None else None,
        "key": call.key.id if call.key is not None else None,
        "format": call.dialect.name,
        "adapter": call.pin.adapter if call.pin is not None else call.target.kind,
        "status": status,
        "outcome": outcome,
        "stream": call.stream,
        "seconds": round(time.time() - call.started, 6),
        "first_byte": round(call.first - call.started, 6) if call.first is not None else None,
        "upstream": call.upstream or None,
        "tries": call.tries,
    }
    log.debug("call", extra={k: v for k, v in fields.items() if v is not None})
