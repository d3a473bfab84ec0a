"""Formats without token ids: asked as chat completions where the reply comes out equal, else relayed unchanged."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slipstream_proxy.dialects.base import AsAsked, Dialect, Hide, Injected, ReplyTranslator, Turn
from slipstream_proxy.dialects.call_reader import Read, parsed
from slipstream_proxy.dialects.chat import Chat
from slipstream_proxy.dialects.openai import PACKED
from slipstream_proxy.json_types import Json, JsonList, JsonObject
from slipstream_proxy.records import CallHead, Parsed

log = logging.getLogger(__name__)

_CHAT = Chat()


def items(value: Json) -> JsonList:
    """A list, or a string as what the user says."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return value if isinstance(value, list) else []


class ThroughChat(Dialect):
    """``_to_chat`` makes the chat request, or raises ``AsAsked``; ``_back`` converts the reply."""

    def _to_chat(self, body: JsonObject) -> JsonObject:
        raise NotImplementedError

    def _back(self, body: JsonObject) -> ReplyTranslator:
        raise NotImplementedError

    def _add(self, turn: Turn, item: JsonObject) -> None:
        raise NotImplementedError

    def _read(self, reply: bytes, *, stream: bool) -> Read:
        raise NotImplementedError

    def _texts(self, body: JsonObject) -> tuple[JsonList, JsonList]:
        raise NotImplementedError

    def inject(self, body: JsonObject, *, packed: bool = False) -> Injected:
        try:
            asked = _CHAT.inject(self._to_chat(body), packed=packed)
            return Injected(asked.body, PACKED if packed else Hide(), None, self._back(body))
        except AsAsked as e:
            return Injected(body, Hide(), str(e))
        except (
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
        ) as e:  # a shape that nobody thought of: the engine says what it is
            log.warning("a request of the format %s could not be read: %r", type(self).__name__, e)
            return Injected(body, Hide(), "unreadable request")

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        return reply

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        return event

    def read(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        if head.extra.get("route") == "chat":
            return _CHAT.read(request, reply, head)
        read: Callable[..., Read] = self._read
        return parsed(request, reply, head, read, self._texts)

    def _turn(self, messages: JsonList, *, has_reply: bool = False) -> Turn:
        turn = Turn(has_reply=has_reply)
        for item in messages:
            if isinstance(item, dict):
                self._add(turn, item)
        return turn
