"""What a chat stream says, read as its events come: what is left to do at its end would keep the client waiting, and
many streams may end in one moment.
"""

from __future__ import annotations

from typing import Final

from slipstream_proxy.dialects.base import Speech, Turn, event_data, loads, put_behind
from slipstream_proxy.dialects.chat_message import add_delta, add_said, as_list, stop_of
from slipstream_proxy.dialects.token_arrays import FIELD, MEMBER
from slipstream_proxy.json_types import JsonObject

_END: Final = b"}\n\n"
_TRIES: Final = 8
"""How often one stream's usual event is looked for."""


class SaidMessage:
    """What one choice has said so far; ``stop`` is the stop string that ended it, which the engine cut off."""

    __slots__ = ("message", "stop")

    def __init__(self) -> None:
        self.message: JsonObject = {"role": "assistant", "content": None}
        self.stop = ""


class ChatSpeech(Speech):
    """Most events of a stream differ in one text only. Such an event is compared with the one before and not parsed.

    ``before`` and ``after`` are what stands around the text. They are taken from an event that was parsed, and what
    they are with another text was parsed, too. So an event that has them says the same as its JSON, if its text is one
    without escapes and nothing but the engine plugin's member follows.
    """

    __slots__ = ("_after", "_before", "_broken", "_message", "_name", "_said", "_texts", "_tries")

    def __init__(self) -> None:
        self._said: dict[int, SaidMessage] = {}
        self._broken = False
        """An event was of no form that is known: nothing can be said of the whole."""
        self._before = self._after = b""
        self._message: JsonObject = {}
        """The message to which the usual event adds, and the ``name`` of the member that grows."""
        self._name = ""
        self._texts: list[str] = []
        """Of usual events, to be put behind what the message has."""
        self._tries = 0

    def hear(self, event: bytes) -> None:
        if self._before and event.startswith(self._before) and self._usual(event):
            return
        try:
            self._put_texts()
            self._read(event)
        except Exception:  # whatever an engine may send
            self._broken = True

    def turn(self) -> Turn:
        turn = Turn(has_reply=True)
        try:
            self._put_texts()
            for index in () if self._broken else sorted(self._said):
                add_said(turn, self._said[index].message, self._said[index].stop)
        except Exception:
            return Turn(has_reply=True)
        return turn

    def _usual(self, event: bytes) -> bool:
        """Take over an event that has nothing new but its text."""
        start, after = len(self._before), self._after
        end = event.find(b'"', start)
        if end < 0 or not event.startswith(after, end):
            return False
        stop = end + len(after)
        if event.startswith(MEMBER, stop):
            if not event.endswith(_END):
                return False
        elif len(event) != stop + len(_END) or not event.endswith(_END):
            return False
        said = event[start:end]
        if said.find(b"\\") >= 0:
            return False
        try:
            text = said.decode()
        except UnicodeDecodeError:
            return False
        if not text.isprintable():  # JSON does not take line ends and other signs in a text
            return False
        self._texts.append(text)
        return True

    def _put_texts(self) -> None:
        if self._texts:
            texts, self._texts = self._texts, []
            put_behind(self._message, self._name, "".join(texts))

    def _read(self, event: bytes) -> None:
        data = event_data(event)
        if not data.startswith(b"{"):
            return
        try:
            read = loads(data)
        except ValueError:
            return
        if not isinstance(read, dict):
            return
        parts = as_list(read.get("choices"))
        for part in parts:
            said = self._said.setdefault(part.get("index", 0), SaidMessage())
            add_delta(said.message, part.get("delta") or {})
            said.stop = stop_of(part) or said.stop
        if len(parts) == 1 and self._tries < _TRIES and not (self._before and event.startswith(self._before)):
            self._learn(event, read, parts[0])

    def _learn(self, event: bytes, read: JsonObject, part: JsonObject) -> None:
        """Is this what the next events will look like?"""
        delta = part.get("delta")
        if part.get("finish_reason") or stop_of(part) or not isinstance(delta, dict) or len(delta) != 1:
            return
        name, text = next(iter(delta.items()))
        if name in ("role", "tool_calls") or not isinstance(text, str):
            return
        self._tries += 1
        key = b'"delta":{"%b":"' % name.encode("utf-8", "replace")
        at = event.find(key)
        if at < 0 or not event.startswith(b"data: {") or not event.endswith(_END):
            return
        start = at + len(key)
        end = event.find(b'"', start)
        stop = event.rfind(MEMBER)
        if stop < 0:
            stop = len(event) - len(_END)
        if not start <= end < stop:
            return
        before, after = event[:start], event[end:stop]
        try:
            other = loads(b"%b.%b}" % (before[6:], after))
        except ValueError:  # the text has an escaped quote
            return
        read.pop(FIELD, None)
        delta[name] = "."
        if other == read:
            self._before, self._after, self._name = before, after, name
            self._message = self._said[part.get("index", 0)].message
