"""Calls of other formats that are asked as chat completions, because only that route gives token ids.

``route.back`` makes the client's format of the reply, and ``asked.payload`` is the body as the client sent it. Until a
byte was relayed such a call can still go to its own route, unchanged and without ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.engines.engine import NO_IDS
from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.dialects.base import AsAsked, loads
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.parse_weight import MOST_OF_REPLY, too_heavy

if TYPE_CHECKING:
    from slipstream_proxy.data.call.contexts import ChatTemplates, ContextLengths, ResponseFields
    from slipstream_proxy.data.call.parts import Call

CHAT_PATH = "/v1/chat/completions"

_NOT_THE_REQUEST = (408, 429)
"""4xx that say nothing about the request."""


class Translation(CallStep):
    """Sends the chat request, and translates its reply."""

    def __init__(
        self, contexts: ContextLengths, templates: ChatTemplates, fields: ResponseFields, *, own_responses: bool
    ) -> None:
        """``own_responses``: responses go to the engine's own route (``engine.own_responses``)."""
        self._contexts, self._templates, self._fields = contexts, templates, fields
        self._own_responses = own_responses

    def choose(self, call: Call) -> bool:
        back = call.route.back
        if back is None:
            return True
        if call.asked.dialect.name == "responses" and self._own_responses:
            call.route.ask_as_it_came(call.asked, UntrainableReason.OWN_RESPONSES.of())
            return True
        if (
            call.route.note == NO_IDS
        ):  # no ids are asked for, and there is no route of the engine's whose reply this one would have to equal
            call.route.ask_at(CHAT_PATH)
            return True
        if back.context_needed and back.context is None:
            context = self._contexts.of(call.route.servers[0], call.go_on)
            if context is None:
                return False
            if context <= 0:
                call.route.ask_as_it_came(call.asked, UntrainableReason.CONTEXT_UNKNOWN.of())
                return True
            back.context = context
        if back.fields_needed:
            fields = self._fields.of(call.route.servers[0], call.go_on)
            if fields is None:
                return False
            back.say_back(fields)
        if back.template_needed:
            template = self._templates.of(call.route.servers[0], call.go_on)
            if template is None:
                return False
            assert call.route.payload is not None
            try:
                back.settle(call.route.payload, merges=template.merges, quiet=template.quiet)
            except AsAsked as e:
                call.route.ask_as_it_came(call.asked, str(e))
                return True
        call.route.ask_at(CHAT_PATH)
        return True

    def event(self, call: Call, event: bytes) -> bytes | None:
        return event if call.route.back is None else call.route.back.event(_light(event))

    def response_body(self, call: Call, status: int, body: bytes) -> bytes:
        if call.route.back is None:
            return body
        if status != 200:
            dialect = call.asked.dialect
            own = dialect.name == "responses" and call.route.note != NO_IDS and is_openai_error(body)
            return body if own else dialect.error(status, said_in(body), "engine_error")
        return call.route.back.whole(_light(body))

    def rejected(self, call: Call, status: int) -> bool:
        """The engine's own route says what there is to say of a request that is no chat completion."""
        if call.route.back is None or call.asked.dialect.routeless or call.route.note == NO_IDS:
            return False
        if status >= 500 or status in _NOT_THE_REQUEST:
            return False
        call.route.ask_as_it_came(call.asked, UntrainableReason.ENGINE_REFUSED.of(), again=True)
        return True


def is_openai_error(body: bytes) -> bool:
    try:
        return isinstance(loads(body)["error"]["message"], str)
    except (ValueError, LookupError, TypeError):
        return False


def said_in(body: bytes) -> str:
    """The message of an error of OpenAI's form, or what else the engine said."""
    try:
        return str(loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:500].decode("utf-8", "replace")


def _light(reply: bytes) -> bytes:
    if too_heavy(reply, MOST_OF_REPLY):
        raise ValueError("a reply that would take too much memory to be read")
    return reply
