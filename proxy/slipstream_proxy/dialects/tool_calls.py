"""The tool calls of a chat reply, as servers stream them: with or without an index or an id, in parts that may
interleave.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from slipstream_proxy.json_types import Json, JsonObject


class CallPlaces:
    """Which call of a reply a part belongs to. Some servers send no index, or one index for all."""

    __slots__ = ("_by_id", "_by_index", "_ids", "_last")

    def __init__(self) -> None:
        self._by_index: dict[int, int] = {}
        self._by_id: dict[str, int] = {}
        self._ids: list[str] = []
        self._last = -1

    def place(self, part: JsonObject, said: Callable[[int], str]) -> int:
        """The call's number, from 0. The next free one: a call begins. ``said``: a call's arguments so far."""
        index, ident = part.get("index"), part.get("id")
        name = (part.get("function") or {}).get("name")
        ident = ident if isinstance(ident, str) else ""
        if isinstance(index, int):
            at = self._by_index.get(index, -1)
            if at < 0 or (ident and name and self._ids[at] not in ("", ident)):
                at = self._by_id.get(ident, len(self._ids))
            elif name and _argues(part) and not ident and not self._ids[at] and said(at).rstrip().endswith("}"):
                at = len(self._ids) if object_of(said(at)) is not None else at
            self._by_index[index] = at
        elif ident:
            at = self._by_id.get(ident, len(self._ids))
        else:
            at = len(self._ids) if name or self._last < 0 else self._last
        if at == len(self._ids):
            self._ids.append(ident)
        elif ident:
            self._ids[at] = self._ids[at] or ident
        if ident:
            self._by_id[ident] = at
        self._last = at
        return at


def as_functions(choice: JsonObject, field: str) -> JsonObject:
    """A choice whose message (``field``: message or delta) has its calls as functions. Older servers tell their one
    call by itself. Raises ``ValueError`` for a call of a tool that is no function: other formats cannot say it.
    """
    said = choice.get(field)
    if not isinstance(said, dict):
        return choice
    calls = said.get("tool_calls")
    if any(isinstance(call, dict) and call.get("custom") is not None for call in calls or ()):
        raise ValueError("a call of a custom tool")
    old = said.get("function_call")
    if isinstance(old, dict) and not calls:
        choice = {**choice, field: {**said, "tool_calls": [{"index": 0, "type": "function", "function": old}]}}
    if choice.get("finish_reason") == "function_call":
        choice = {**choice, "finish_reason": "tool_calls"}
    return choice


def _argues(part: JsonObject) -> bool:
    said = part["function"].get("arguments")
    return bool(said.strip()) if isinstance(said, str) else said is not None


def arguments_of(function: JsonObject) -> str:
    """A whole call's arguments. None at all are the empty object."""
    said = function.get("arguments")
    if isinstance(said, str):
        return said if said.strip() else "{}"
    return "{}" if said is None else json.dumps(said, ensure_ascii=False)


def call_id(call: JsonObject) -> str:
    """Some servers give none."""
    ident = call.get("id")
    return ident if isinstance(ident, str) and ident else f"call_{uuid.uuid4().hex[:24]}"


def object_of(arguments: str) -> JsonObject | None:
    """None: they are not whole, or no object."""
    try:
        value: Json = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return {} if value is None else value if isinstance(value, dict) else None


class StreamedCall:
    """A tool call of a stream. ``text``: its arguments as far as they are told."""

    __slots__ = ("_waiting", "begun", "closed", "id", "name", "text")

    def __init__(self) -> None:
        self.id = self.name = self.text = ""
        self.begun = self.closed = False
        self._waiting: list[str] = []

    def add(self, part: JsonObject) -> None:
        function = part.get("function") or {}
        said = function.get("arguments")
        if isinstance(said, dict):
            said = json.dumps(said, ensure_ascii=False)
        if self.closed and said and said.strip():
            raise ValueError("a tool call goes on behind its end")
        self.id = self.id or part.get("id") or ""
        self.name = self.name or function.get("name") or ""
        if said and not self.closed:
            self._waiting.append(said)

    def take(self) -> str:
        """What is to be told next."""
        told = "".join(self._waiting)
        self._waiting = []
        self.text += told
        return told

    @property
    def said(self) -> str:
        """All that has come of its arguments."""
        return self.text + "".join(self._waiting)

    @property
    def whole(self) -> bool:
        return bool(self.text) and object_of(self.text) is not None


class CallLine:
    """A stream's calls one after the other, as formats tell them. A call waits until the one before it is whole."""

    __slots__ = ("_calls", "_places", "open")

    def __init__(self) -> None:
        self._places = CallPlaces()
        self._calls: list[StreamedCall] = []
        self.open: StreamedCall | None = None
        """The one that is being told."""

    def add(self, part: JsonObject) -> StreamedCall:
        at = self._places.place(part, lambda at: self._calls[at].said)
        if at == len(self._calls):
            self._calls.append(StreamedCall())
        self._calls[at].add(part)
        return self._calls[at]

    @property
    def busy(self) -> bool:
        """Whether more of the open call may come."""
        return self.open is not None and not self.open.whole

    def close(self) -> None:
        if self.open is not None:
            self.open.closed = True
            self.open = None

    def next(self, *, over: bool = False) -> StreamedCall | None:
        """The call that begins now; the caller ends the open one first. ``over``: nothing comes any more. Raises
        ``ValueError`` where a call has no name then.
        """
        if self.busy and not over:
            return None
        for call in self._calls:
            if not call.begun and (call.name or over):
                if not call.name:
                    raise ValueError("a tool call without a name")
                call.begun = True
                call.id = call_id({"id": call.id})
                return call
        return None
