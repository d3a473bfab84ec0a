"""Formats without token ids: asked as chat completions where the reply comes out equal, else relayed unchanged."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slipstream_proxy.dialects.base import (
    PACKED_HIDE,
    AsAsked,
    Dialect,
    Hide,
    Injected,
    Read,
    ReplyTranslator,
    Turn,
    event_data,
    loads,
    parsed,
)
from slipstream_proxy.dialects.chat import Chat
from slipstream_proxy.dialects.purpose import orders, quotes
from slipstream_proxy.dialects.token_arrays import PACKED_FIELD
from slipstream_proxy.dialects.tool_calls import as_functions
from slipstream_proxy.json_types import Json, JsonList, JsonObject
from slipstream_proxy.log.records import CallHead, Parsed

log = logging.getLogger(__name__)


def thought(said: JsonObject) -> str | None:
    """What a chat message, or a part of one, says of the model's thoughts: servers call it by two names."""
    thoughts = said.get("reasoning")
    thoughts = said.get("reasoning_content") if thoughts is None else thoughts
    return thoughts if isinstance(thoughts, str) else None


def spoken(said: JsonObject) -> str | None:
    """What it says to the user: a text, the texts of its parts, or why it says nothing."""
    content = said.get("content")
    if isinstance(content, list):
        content = "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return content if isinstance(content, str) and (content or said.get("refusal") is None) else said.get("refusal")


class ChatEvents:
    """A stream of chat events on its way to another format. ``event`` reads one, and raises ``ValueError`` for what
    cannot be told in it; what the format makes of it is the subclass's.
    """

    failed = False
    """The engine has said an error: no end follows."""
    done = False
    """The end was said."""
    said_anything = False
    chosen = False
    """A choice has come."""
    fields_needed = False
    template_needed = False

    def say_back(self, fields: dict[str, list[str]]) -> None:
        """It says nothing back."""

    def settle(self, chat: JsonObject, *, merges: bool | None, quiet: str | None) -> None:
        """Nothing depends on the template."""

    def event(self, event: bytes) -> bytes | None:
        """The events that the engine would have sent for this one; None: none."""
        data = event_data(event)
        if data == b"[DONE]":
            if self.said_anything and not (self.failed or self.chosen):
                raise ValueError("a stream without a choice")
            end = None if self.failed else self._end()
            self.done = end is not None
            return end
        if not data.startswith(b"{"):
            return None
        read = loads(data)
        if read.get("error") is not None:
            return self.error_event(read["error"])
        if PACKED_FIELD in read and "choices" not in read:
            return None  # what was sampled, and nothing for the client
        self.said_anything = True
        if choices := read.get("choices"):
            self.chosen = True
            read["choices"] = [as_functions(choice, "delta") for choice in choices]
        return b"".join(self._events(read)) or None

    def error_event(self, error: Json) -> bytes:
        """What ends the stream before its end. ``error``: as OpenAI's errors are, or a text."""
        self.failed = True
        return self._error(error if isinstance(error, dict) else {"message": str(error)})

    def _end(self) -> bytes | None:
        """None: nothing has begun."""
        raise NotImplementedError

    def _error(self, error: JsonObject) -> bytes:
        raise NotImplementedError

    def _events(self, read: JsonObject) -> list[bytes]:
        raise NotImplementedError


_CHAT = Chat()


def items(value: Json) -> JsonList:
    """A list, or a string as what the user says."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return value if isinstance(value, list) else []


def _plain(chat: JsonObject) -> JsonObject:
    """Without the fields that only some servers know, and others refuse."""
    if "max_tokens" in chat:
        chat.pop("max_completion_tokens", None)
    if isinstance(chat.get("stream_options"), dict):
        chat["stream_options"] = {"include_usage": True}
    return {name: value for name, value in chat.items() if value is not None}


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
        made = self._through_chat(body, lambda chat: _CHAT.inject(chat, packed=packed).body)
        if packed and made.back is not None:
            made.hide = PACKED_HIDE
        return made

    def as_chat(self, body: JsonObject) -> Injected:
        return self._through_chat(body, _plain)

    def _through_chat(self, body: JsonObject, asking: Callable[[JsonObject], JsonObject]) -> Injected:
        try:
            return Injected(asking(self._to_chat(body)), Hide(), None, self._back(body))
        except AsAsked as e:
            return Injected(body, Hide(), str(e))
        except (
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
        ) as error:  # a shape that nobody thought of: the engine says what it is. Compiled, a name has one type
            log.warning("a request of the format %s could not be read: %s", type(self).__name__, type(error).__name__)
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

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        try:
            _, choices, _ = self._read(reply, stream=stream)
        except Exception:
            choices = []
        turn = self._turn([c.message for c in choices], has_reply=True)
        turn.quotes = [quote for choice in choices for quote in quotes(choice.message)]
        turn.orders = orders([choice.message for choice in choices])
        return turn

    def _turn(self, messages: JsonList, *, has_reply: bool = False) -> Turn:
        turn = Turn(has_reply=has_reply)
        for item in messages:
            if isinstance(item, dict):
                self._add(turn, item)
        return turn
