"""Calls of other formats that are asked as chat completions, because only that route gives token ids.

``call.back`` makes the client's format of the reply, and ``call.plain`` is the body as the client sent it. Until a
byte was relayed such a call can still go to its own route, unchanged and without ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.parse_weight import MOST_OF_REPLY, too_heavy

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall
    from slipstream_proxy.data.call.contexts import ContextLengths

CHAT = "/v1/chat/completions"

_NOT_THE_REQUEST = (408, 429)
"""4xx that say nothing about the request."""


class Translation(CallStep):
    """Sends the chat request, and translates its reply."""

    def __init__(self, contexts: ContextLengths, *, own_responses: bool) -> None:
        """``own_responses``: responses go to the engine's own route (``engine.own_responses``)."""
        self._contexts = contexts
        self._own_responses = own_responses

    def choose(self, call: ActiveCall) -> bool:
        back = call.back
        if back is None:
            return True
        if call.dialect.name == "responses" and self._own_responses:
            _as_asked(call, "engine.own_responses")
            return True
        if back.context_needed and back.context is None:
            context = self._contexts.of(call.servers[0], call.go_on)
            if context is None:
                return False
            if context <= 0:
                _as_asked(call, "the length of the engine's context is not known")
                return True
            back.context = context
        call.path = CHAT
        return True

    def event(self, call: ActiveCall, event: bytes) -> bytes | None:
        return event if call.back is None else call.back.event(_light(event))

    def response_body(self, call: ActiveCall, status: int, body: bytes) -> bytes:
        return body if call.back is None or status != 200 else call.back.whole(_light(body))

    def rejected(self, call: ActiveCall, status: int) -> bool:
        """The engine's own route says what there is to say of a request that is no chat completion."""
        if call.back is None or status >= 500 or status in _NOT_THE_REQUEST:
            return False
        call.tries -= 1
        _as_asked(call, "the engine refused it as a chat completion")
        return True


def _light(reply: bytes) -> bytes:
    if too_heavy(reply, MOST_OF_REPLY):
        raise ValueError("a reply that would take too much memory to be read")
    return reply


def _as_asked(call: ActiveCall, note: str) -> None:
    call.payload, call.plain, call.back, call.note = call.plain, None, None, note
    call.path = call.request.path
