"""What a wire format has to say: what to ask for, what to hide, and how to read a recorded call."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import orjson

from slipstream_proxy.records import CallHead, Choice, Parsed

T = TypeVar("T")
Parse = Callable[[Any, bytes, bytes, CallHead], Parsed]


@dataclass(slots=True)
class Hide:
    """What of a reply is there only because we asked for it."""

    ids: bool = False
    logprobs: bool = False
    reasoning: bool = False

    def __bool__(self) -> bool:
        return self.ids or self.logprobs or self.reasoning


@dataclass(slots=True)
class Injected:
    """``body`` is what goes to the engine; ``note`` why it is not enough for exact capture."""

    body: dict[str, Any]
    hide: Hide
    note: str | None = None


@dataclass(slots=True)
class Turn:
    """What identifies a conversation: its messages, canonical, and the tool-call ids in them."""

    messages: list[bytes] = field(default_factory=list)
    tool_ids: list[str] = field(default_factory=list)
    has_reply: bool = False
    """A message of the assistant is among them: the request may continue something."""


class Dialect(Protocol):
    name: str
    path: str

    def inject(self, body: dict[str, Any]) -> Injected:
        """Ask for ids and log-probabilities. May return the same dict changed."""

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        """A reply as the engine would have sent it to the client."""

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        """An SSE event (with its blank line) likewise; None: the engine would not have sent it."""

    def terminal(self, event: bytes) -> bool:
        """Is this the stream's last event?"""

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        """An error's JSON body."""

    def error_event(self, status: int, message: str, kind: str) -> bytes:
        """An error inside a stream, as an SSE event."""

    def parse(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        """Read a recorded call. Never raises: what cannot be read is ``untrainable``."""

    def turn(self, body: dict[str, Any]) -> Turn:
        """The request's conversation."""

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        """The reply's messages (one a choice)."""


def loads(text: bytes) -> Any:
    """JSON as Python's reader takes it: lone surrogates, NaN and long integers too. Raises ValueError."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def dumps(value: Any) -> bytes:
    """Compact JSON; what orjson refuses (lone surrogates, long integers, NaN) goes out escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


_BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class Events:
    """Cuts a byte stream into SSE events, each with the blank line that ends it."""

    __slots__ = ("tail",)

    def __init__(self) -> None:
        self.tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        if self.tail:
            data = self.tail + data
        if b"\r" in data:
            return self._feed_any(data)
        if data.endswith(b"\n\n") and data.count(b"\n\n") == 1 and b"\n\n\n" not in data:
            self.tail = b""
            return [data]
        *events, self.tail = data.split(b"\n\n")
        return [e + b"\n\n" for e in events]

    def _feed_any(self, data: bytes) -> list[bytes]:
        events, start = [], 0
        for m in _BLANK.finditer(data):
            events.append(data[start : m.end()])
            start = m.end()
        self.tail = data[start:]
        return events


def event_data(event: bytes) -> bytes:
    """The ``data`` of an event: its data lines joined, as the SSE specification says."""
    if event.startswith(b"data: ") and event.count(b"\n") == 2:
        return event[6:-2]
    lines = [
        line[5:].removeprefix(b" ")
        for line in event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines)


def stream_objects(reply: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a recorded stream, in order; what is cut off at its end is left out."""
    reader = Events()
    for event in reader.feed(reply):
        data = event_data(event)
        if data.startswith(b"{"):
            try:
                value = loads(data)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def null_ids(text: bytes) -> bytes:
    """Token-id arrays become null, as vLLM writes them when they are not asked for. Inside JSON strings quotes are escaped, so the keys
    found here are keys.
    """
    at = text.find(b'token_ids":')
    if at < 0:
        return text
    parts: list[bytes] = []
    start = 0
    while at >= 0:
        begin = at + 11
        if text[begin : begin + 1] == b" ":
            begin += 1
        if text[begin : begin + 1] == b"[":
            end = text.find(b"]", begin)
            if end < 0:
                break
            parts += (text[start:begin], b"null")
            start = begin = end + 1
        at = text.find(b'token_ids":', begin)
    parts.append(text[start:])
    return b"".join(parts)


def null_logprobs(text: bytes) -> bytes | None:
    """Objects under ``logprobs`` become null; None: they do not stand where vLLM writes them (before finish_reason)."""
    key, after = b'"logprobs":{', b',"finish_reason":'
    at = text.find(key)
    if at < 0:
        key, after = b'"logprobs": {', b', "finish_reason":'
        at = text.find(key)
        if at < 0:
            return text
    parts: list[bytes] = []
    start = 0
    while at >= 0:
        end = text.find(after, at)
        if end < 0 or text[end - 1] != 0x7D:
            return None
        parts += (text[start : at + len(key) - 1], b"null")
        start = end
        at = text.find(key, end)
    parts.append(text[start:])
    return b"".join(parts)


def openai_error(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    return dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def fail(reason: str, error: str | None = None) -> Parsed:
    return Parsed([], [], {}, [], [], reason, error)


def readable(parse: Parse) -> Parse:
    """A reader of strangers' bytes that answers instead of raising: what it cannot read cannot be trained on."""

    @functools.wraps(parse)
    def safe(self: Any, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        try:
            return parse(self, request, reply, head)
        except Exception as e:
            return fail("unreadable", f"{type(e).__name__}: {e}"[:4096])

    return safe


def attempt(read: Callable[..., T], reply: bytes, *, stream: bool) -> tuple[T | None, str | None]:
    """What a reply says, and ``unreadable`` where it cannot be read (an aborted call's is cut off somewhere)."""
    if not reply:
        return None, None
    try:
        return read(reply, stream=stream), None
    except Exception:
        return None, "unreadable"


def error_text(reply: bytes) -> str:
    return reply[:4096].decode("utf-8", "replace")


def why_not(head: CallHead, sampling: str | None, prompt: list[int], choices: list[Choice]) -> str | None:
    """The first reason why a call cannot be trained on; None: it can."""
    if head.external:
        return "external upstream"
    if head.outcome == "aborted":
        return "aborted"
    if head.outcome != "ok" or head.status != 200:
        return "error"
    if sampling:
        return sampling
    if head.note:
        return head.note
    if not prompt or not choices or any(not c.completion_ids for c in choices):
        return "no token ids"
    if any(len(c.completion_ids) != len(c.logprobs) for c in choices):
        return "logprobs do not match the token ids"
    if any(not lp > -9999 for c in choices for lp in c.logprobs):
        return "logprob -9999"
    return None
