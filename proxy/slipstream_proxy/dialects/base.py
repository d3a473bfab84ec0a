"""What a wire format has to say: what to ask for, what to hide, and how to read a recorded call.

What all formats do alike, and what OpenAI's own share.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Final, Protocol

import orjson

from slipstream_proxy.dialects.sampling import sampling_of, untrainable_within
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.json_types import Json, JsonList, JsonObject, python_loads
from slipstream_proxy.log.records import CallHead, Choice, Parsed
from slipstream_proxy.usage import usage_of


@dataclass(slots=True)
class Hide:
    """What of a reply is there only because we asked for it."""

    ids: bool = False
    logprobs: bool = False
    reasoning: bool = False
    packed: bool = False
    """The member of the engine's plugin (``packed``); then nothing else is there."""

    def __bool__(self) -> bool:
        return self.ids or self.logprobs or self.reasoning or self.packed


class AsAsked(Exception):
    """The request goes unchanged to its own route, and is recorded without ids. The message is the reason."""


def list_of(value: Json) -> JsonList:
    """Raises ``AsAsked`` for what is no list."""
    if not isinstance(value, list):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    return value


_PLAIN = re.compile(r"[\w.:-]{1,40}", re.ASCII)


def shown(value: Json) -> str:
    """A type or a name that a client sent, as a reason may show it."""
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) is not None else "unknown"


class ReplyTranslator(Protocol):
    """Makes the client's format of a chat reply: at once, or event by event."""

    context_needed: bool
    """The length of the engine's context has to be known first, as ``context``."""
    context: int | None
    fields_needed: bool
    """What the engine's own route says back has to be known first: ``say_back`` is told."""
    template_needed: bool
    """What the engine's chat template takes has to be known first: ``settle`` is told."""

    def say_back(self, fields: dict[str, list[str]]) -> None:
        """``fields``: of tools and calls, by kind, in the engine's order."""

    def settle(self, chat: JsonObject, *, merges: bool | None, quiet: str | None) -> None:
        """Changes the chat request as the engine's own route would make it for its template. Raises ``AsAsked``."""

    def whole(self, reply: bytes) -> bytes:
        """Raises where the reply cannot be read."""

    def event(self, event: bytes) -> bytes | None:
        """None, or as many events as the format has for this one. Raises where there is none for what it says."""

    def error_event(self, error: Json) -> bytes:
        """What ends the stream before its end. ``error``: as OpenAI's errors are, or a text."""

    @property
    def done(self) -> bool:
        """The stream's end was said."""

    @property
    def failed(self) -> bool:
        """An error was said in place of it."""


class Injected:
    """``body`` is what goes to the engine; ``note`` why it is not enough for exact capture. With a ``back`` it is a
    chat request, and the client's own body has been left as it was.
    """

    __slots__ = ("back", "body", "hide", "note")  # no dataclass: the ``__init__`` of one is not compiled

    def __init__(
        self, body: JsonObject, hide: Hide, note: str | None = None, back: ReplyTranslator | None = None
    ) -> None:
        self.body, self.hide, self.note, self.back = body, hide, note, back


@dataclass(slots=True)
class Turn:
    """What identifies a conversation: its messages, canonical, and the tool-call ids in them."""

    messages: list[bytes] = field(default_factory=list)
    tool_ids: list[str] = field(default_factory=list)
    has_reply: bool = False
    """A message of the assistant is among them: the request may continue something."""
    quotes: list[str] = field(default_factory=list)
    """Of a reply: how it would be quoted (``purpose``)."""
    orders: list[str] = field(default_factory=list)
    """Of a reply: what its tool calls hand on."""
    summary: bool = False
    """Of a request: it asks for a summary of what it quotes."""


class Speech:
    """What a stream says, put together as its events come. A class and no protocol: compiled, its calls are C calls."""

    __slots__ = ()

    def hear(self, event: bytes) -> None:
        """The engine's next event, with its blank line. Never raises."""
        raise NotImplementedError

    def turn(self) -> Turn:
        """The same as ``Dialect.said`` finds in all events."""
        raise NotImplementedError


class EventHider:
    """``Dialect.event`` for the events of one stream."""

    __slots__ = ("_dialect", "_hide")

    def __init__(self, dialect: Dialect, hide: Hide) -> None:
        self._dialect, self._hide = dialect, hide

    def event(self, event: bytes) -> bytes | None:
        return self._dialect.event(event, self._hide)


class Dialect:
    """A wire format. A class and no protocol: compiled, its calls are C calls."""

    __slots__ = ()

    name: str = ""
    path: str = ""
    paths: str = ""
    """A regular expression of all its addresses, where they say more than ``path``."""
    routeless: bool = False
    """No engine has a route for it: what cannot be asked as a chat completion is refused."""

    def read_path(self, path: str, body: JsonObject) -> None:
        """Writes into the body what the address says of it. ``path`` has its query."""

    def inject(self, body: JsonObject, *, packed: bool = False) -> Injected:
        """Ask for ids and log-probabilities. May return the same dict changed.

        ``packed``: every engine has Slipstream's plugin, so that one member asks for both.
        """
        raise NotImplementedError

    def as_chat(self, body: JsonObject) -> Injected:
        """The call as a chat completion that asks for nothing more, for an engine without a route for this format."""
        return Injected(body, Hide())

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        """A reply as the engine would have sent it to the client."""
        raise NotImplementedError

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        """An SSE event (with its blank line) likewise; None: the engine would not have sent it."""
        raise NotImplementedError

    def hider(self, hide: Hide) -> EventHider:
        """Of a stream."""
        return EventHider(self, hide)

    def terminal(self, event: bytes) -> bool:
        """Is this the stream's last event?"""
        raise NotImplementedError

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        """An error's JSON body."""
        raise NotImplementedError

    def error_event(self, status: int, message: str, kind: str, relayed: bytes = b"") -> bytes:
        """An error inside a stream, as an SSE event. ``relayed``: the stream before it."""
        raise NotImplementedError

    def parse(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        """Read a recorded call. Never raises: what cannot be read cannot be trained on."""
        try:
            return self.read(request, reply, head)
        except Exception as e:
            return unreadable("unreadable", f"{type(e).__name__}: {e}"[:4096])

    def read(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        """``parse`` of a format. May raise whatever it does at strangers' bytes."""
        raise NotImplementedError

    def whole_events(self, reply: bytes) -> JsonList:
        """A recorded stream as the fewest objects that ``read`` finds the same in. May raise, as ``read``."""
        raise NotImplementedError

    def turn(self, body: JsonObject) -> Turn:
        """The request's conversation. Never raises."""
        raise NotImplementedError

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        """The reply's messages (one a choice). Never raises."""
        raise NotImplementedError

    def speech(self) -> Speech | None:
        """Hears a stream of this format; None: ``said`` reads it when all of it is there."""
        return None


def unreadable(reason: str, error: str | None = None) -> Parsed:
    return Parsed([], [], {}, [], [], reason, error)


_loads: Final[Callable[[bytes], Json]] = orjson.loads
_dumps: Final[Callable[[Json], bytes]] = orjson.dumps
"""By these names a compiled call costs no look-up."""


def loads(text: bytes) -> Json:
    """JSON as Python's reader takes it: lone surrogates and NaN too. Raises ValueError."""
    try:
        return _loads(text)
    except ValueError:
        return python_loads(text)


def dumps(value: Json) -> bytes:
    """Compact JSON. Python writes what orjson refuses: lone surrogates, integers beyond 64 bits, ``Odd``."""
    try:
        return _dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


_PIECE = 2**20
"""Bytes of a recorded stream that are cut into events at once."""

# For bytes ``find`` is far cheaper than ``in``, which tries to take what it looks for as a number first, and
# ``partition`` is cheaper still.
_BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventCutter:
    """Cuts a byte stream into SSE events, each with the blank line that ends it. Costs the same a byte, however long an
    event is.
    """

    __slots__ = ("_last", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """Of an event whose end has not come."""
        self._last = b""
        """Its last bytes, which may begin the blank line."""

    @property
    def tail(self) -> bytes:
        """What is no whole event yet."""
        return b"".join(self._parts)

    def single(self, data: bytes) -> bool:
        """Whether this is exactly one event, as most of what a server sends is. Then ``feed`` is not needed."""
        if self._parts or data.partition(b"\r")[1]:
            return False
        _, _, behind = data.partition(b"\n")  # of one line, as nearly all are
        return behind == b"\n" or (behind[-2:] == b"\n\n" and not data.partition(b"\n\n")[2])

    def feed(self, data: bytes) -> list[bytes]:
        if self._parts:
            end = self._last + data
            if end.find(b"\n\n") < 0 and (end.find(b"\r") < 0 or _BLANK.search(end) is None):
                self._parts.append(data)
                self._last = end[-3:]
                return []
            data = b"".join([*self._parts, data])
        if data.find(b"\r") >= 0:
            return self._feed_any(data)
        *events, tail = data.split(b"\n\n")
        self._keep(tail)
        return [e + b"\n\n" for e in events]

    def _keep(self, tail: bytes) -> None:
        self._parts = [tail] if tail else []
        self._last = tail[-3:]

    def _feed_any(self, data: bytes) -> list[bytes]:
        events, start = [], 0
        for m in _BLANK.finditer(data):
            events.append(data[start : m.end()])
            start = m.end()
        self._keep(data[start:])
        return events


def event_data(event: bytes) -> bytes:
    """The ``data`` of an event: its data lines joined, as the SSE specification says."""
    if event.startswith(b"data: ") and event.count(b"\n") == 2 and event.endswith(b"\n\n"):
        return event[6:-2]
    lines = [
        line[5:].removeprefix(b" ")
        for line in event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if line.startswith(b"data:")
    ]
    return b"\n".join(lines)


def stream_events(reply: bytes) -> Iterator[bytes]:
    """The events of a recorded stream, in order; what is cut off at its end is left out."""
    reader = EventCutter()
    for at in range(0, len(reply), _PIECE):
        yield from reader.feed(reply[at : at + _PIECE])


def stream_objects(reply: bytes) -> Iterator[JsonObject]:
    """The JSON objects of a recorded stream, in order."""
    for event in stream_events(reply):
        data = event_data(event)
        if data.startswith(b"{"):
            try:
                value = loads(data)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def whole_events(dialect: Dialect, reply: bytes) -> bytes:
    """A recorded stream in which each text is whole, as one event or few. Raises where it cannot be read."""
    return b"".join([b"data: %b\n\n" % dumps(event) for event in dialect.whole_events(reply)])


def counted(reply: bytes, prompt: str = "prompt_tokens", completion: str = "completion_tokens") -> JsonObject:
    """The member of an event for the tokens that a recorded stream says it took."""
    names = zip((prompt, completion), usage_of(reply), strict=True)
    found = {name: count for name, count in names if count is not None}
    return {"usage": found} if found else {}


def error_of(error: str | None) -> JsonObject:
    """The member of an event for what ``read`` found as the stream's error."""
    if error is None:
        return {}
    try:
        return {"error": loads(error.encode())}
    except (ValueError, UnicodeEncodeError):
        return {"error": error}


def put_behind(holder: JsonObject, name: str, text: str) -> None:
    """Append to a text that a stream brings in a hundred thousand parts.

    The text grows in place while nothing but ``before`` holds it; else each part would cost a copy of all of it.
    """
    before = holder.get(name) or ""
    if not isinstance(before, str):
        raise TypeError(f"{name} is no text")
    holder[name] = None
    before += text
    holder[name] = before


_LOGPROBS_KEY: Final = b'"logprobs":{'
_IDS_KEY: Final = b'token_ids":['
_FINISH: Final = b'finish_reason":'
_IDS: Final = (_IDS_KEY, b'token_ids": [')
_LOGPROBS: Final = ((_LOGPROBS_KEY, b',"finish_reason":'), (b'"logprobs": {', b', "finish_reason":'))
_BEFORE_IDS: Final = _IDS_KEY[:-1]
_NULL: Final = b"null"
_BRACKET: Final = 0x5B
_BRACE: Final = 0x7B
_FROM_F: Final = len(_FINISH)
_NEAR: Final = 4
"""How often a single letter is looked for, which is cheap, before a whole key."""
LARGE_REPLY_BYTES: Final = 16 * 2**20
"""Bytes from which on a reply is copied once, and not for each of its changes."""


def nulled(text: bytes, *, ids: bool, logprobs: bool) -> bytes | None:
    """A reply or an event with null for token ids and log-probabilities, as in vLLM. None: they do not stand where vLLM
    writes them. JSON strings escape quotes, so what looks like a key is one.
    """
    if ids and logprobs and len(text) <= LARGE_REPLY_BYTES:
        cut = _usual(text)
        if cut is not None:
            return cut
    return _at_once(text, ids=ids, logprobs=logprobs)


def _usual(text: bytes) -> bytes | None:
    """``nulled`` of one choice that has both, as nearly all replies and events are; None: it is another.

    It is cut apart at single letters: looking for one byte is fast. The long part between is not copied.
    """
    at = text.find(_LOGPROBS_KEY)
    if at < 0:
        return None
    finish = text.find(b"f", at)  # most have no other in their log-probabilities
    if finish < 0 or text[finish : finish + _FROM_F] != _FINISH:  # compiled, a slice must not end before it begins
        finish = text.find(_FINISH, at)
    if finish < 0 or text[finish - 3 : finish] != b'},"':
        return None
    before, behind = text[:at], text[finish + 1 :]
    if _BRACKET in before.partition(b"[")[2] and before.find(_IDS_KEY) >= 0:  # mostly the choices' is the only one
        return None
    said, _, behind = behind.partition(b"[")
    _, end, behind = behind.partition(b"]")
    more, bracket, last = behind.partition(b"[")
    if not end or not said.endswith(_BEFORE_IDS) or more.find(_LOGPROBS_KEY) >= 0:
        return None
    if not bracket:
        return b'%b"logprobs":null,"f%bnull%b' % (before, said, more)
    _, end, last = last.partition(b"]")
    if not end or not more.endswith(_BEFORE_IDS) or _BRACKET in last or _BRACE in last:
        return None
    return b'%b"logprobs":null,"f%bnull%bnull%b' % (before, said, more, last)


def _at_once(reply: bytes, *, ids: bool, logprobs: bool) -> bytes | None:
    """``nulled`` with one copy in place of three."""
    key, after = _LOGPROBS[0] if reply.find(_LOGPROBS[0][0]) >= 0 else _LOGPROBS[1]
    ids_key = _IDS[0] if reply.find(_IDS[0]) >= 0 else _IDS[1]
    next_logprobs = reply.find(key) if logprobs else -1
    next_ids = reply.find(ids_key) if ids else -1
    if next_logprobs < 0 and next_ids < 0:
        return reply
    whole, view, start = BytesIO(), memoryview(reply), 0
    while next_logprobs >= 0 or next_ids >= 0:
        if next_ids < 0 or 0 <= next_logprobs < next_ids:
            begin = next_logprobs + len(key) - 1
            end = logprobs_end(reply, after, next_logprobs)
            if end < 0:
                return None
        else:
            begin = next_ids + len(ids_key) - 1
            end = reply.find(b"]", begin) + 1
            if not end:
                break
        whole.write(view[start:begin])
        whole.write(_NULL)
        start = end
        if 0 <= next_logprobs < start:
            next_logprobs = reply.find(key, start)
        if 0 <= next_ids < start:
            next_ids = reply.find(ids_key, start)
    whole.write(view[start:])
    return whole.getvalue()


def logprobs_end(text: bytes, after: bytes, at: int) -> int:
    """Where the object behind the key at ``at`` ends; -1: not where vLLM ends it, before ``after``."""
    end = _next(text, after, at)
    return -1 if end <= 0 or text[end - 1] != 0x7D else end


def _next(text: bytes, after: bytes, at: int) -> int:
    """``text.find(after, at)``. Log-probabilities are long and have few ``f``: looking for one byte is fast."""
    letter = len(after) - _FROM_F
    for _ in range(_NEAR):
        at = text.find(b"f", at + 1)
        if at < 0:
            return -1
        start = at - letter
        if start >= 0 and text[start : start + len(after)] == after:
            return start
    return text.find(after, max(0, at - letter))


def is_done(event: bytes) -> bool:
    """Whether this ends a stream of OpenAI's."""
    return event.startswith(b"data: [DONE]") or event.startswith(b"data:[DONE]")  # noqa: PIE810 - a tuple costs a call


def is_error(event: bytes) -> bool:
    """Whether an engine says with this event of a stream that the reply failed, in any format."""
    if event.startswith(b"data: "):  # a tuple costs a call, so the usual event is asked for alone
        return event.startswith(b'data: {"error"')
    return event.startswith((b"event: error", b"event: response.failed"))


def openai_error(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    return dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


PACKED_HIDE: Final = Hide(packed=True)


def ask_for_ids(body: JsonObject) -> tuple[bool, str | None]:
    """Whether they are to be hidden, because the client did not ask, too; and why they cannot be asked for."""
    asked = body.get("return_token_ids")
    if asked is None or asked is False:
        body["return_token_ids"] = True
        return True, None
    return False, None if asked is True else "unreadable return_token_ids"


class OpenAI(Dialect):
    """Errors, and how a stream ends."""

    def terminal(self, event: bytes) -> bool:
        return is_done(event)

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return openai_error(status, message, kind, param)

    def error_event(self, status: int, message: str, kind: str, relayed: bytes = b"") -> bytes:
        return b"data: " + openai_error(status, message, kind) + b"\n\n"


Read = tuple[list[int], list[Choice], str | None]
"""Prompt ids, choices, error of a reply."""

MOST_CHOICES = 16384
"""As many as vLLM samples of one prompt. More of them, each empty, would be a small reply that takes much memory."""
_BROKEN = ("abort", "error")
"""Ends that the engine made and the policy did not."""


def parsed(
    request: bytes,
    reply: bytes,
    head: CallHead,
    read: Callable[..., Read],
    texts: Callable[[JsonObject], tuple[JsonList, JsonList]],
) -> Parsed:
    """``read(reply, stream=…)`` reads the reply, ``texts(body)`` says the request's messages and tools."""
    body = loads(request)
    if not isinstance(body, dict):
        return unreadable(UntrainableReason.UNREADABLE_REQUEST.of())
    found: Read = [], [], None
    bad = None
    if reply:
        try:
            found, bad = _with_ids(read(reply, stream=head.stream))
        except Exception:  # an aborted call's is cut off somewhere
            bad = "unreadable"
    if len(found[1]) > MOST_CHOICES:
        found, bad = ([], [], None), "too many choices"
    prompt, choices, error = found
    sampled = untrainable_within(body, [len(c.completion_ids) for c in choices], trust=head.trust_sampling)
    reason = why_not(head, bad or sampled, prompt, choices)
    if reason is None and (error is not None or any(c.finish_reason in _BROKEN for c in choices)):
        reason = "error"
    if error is None and head.status >= 400:
        error = reply[:4096].decode("utf-8", "replace")
    return Parsed(*texts(body), sampling_of(body), prompt, choices, reason, error)


def _with_ids(found: Read) -> tuple[Read, str | None]:
    """The reply; without its tokens, and with the reason, where they are none: its text is kept."""
    prompt, choices, error = found
    why = None
    try:
        for ids in (prompt, *(choice.completion_ids for choice in choices)):
            if bool in set(map(type, ids)) or min(array("i", ids), default=0) < 0:
                why = UntrainableReason.NO_TOKEN_ID.of()
        for choice in choices:
            array("f", choice.logprobs)
    except OverflowError:
        why = UntrainableReason.NO_TOKEN_ID.of()
    except (TypeError, ValueError):
        why = "no token ids"
    if why is None:
        return found, None
    for choice in choices:
        choice.completion_ids, choice.logprobs = [], []
    return ([], choices, error), why


def number(value: Json) -> float:
    """A log-probability as a server writes it. NaN: a boolean, which Python would take for a number."""
    return math.nan if isinstance(value, bool) else float(value)


def why_not(head: CallHead, sampling: str | None, prompt: list[int], choices: list[Choice]) -> str | None:
    """The first reason why a call cannot be trained on; None: it can."""
    if head.external:
        return UntrainableReason.EXTERNAL.of()
    if head.outcome == "aborted":
        return UntrainableReason.ABORTED.of()
    if head.outcome != "ok" or head.status != 200:
        return UntrainableReason.ERROR.of()
    if head.note:  # no setting mends what was not captured
        return head.note
    if sampling:
        return sampling
    if not prompt or not choices or any(not c.completion_ids for c in choices):
        return "no token ids"
    if any(len(c.completion_ids) != len(c.logprobs) for c in choices):
        return "logprobs do not match the token ids"
    return unusable(lp for c in choices for lp in c.logprobs)


LOGPROB_ROUNDING_NATS = 1e-4
"""By so much a log-probability may be above 0: engines compute in single precision."""


def unusable(logprobs: Iterable[float]) -> str | None:
    """Why such log-probabilities cannot be trained on."""
    found = [lp for lp in logprobs if not -9999 < lp <= LOGPROB_ROUNDING_NATS]
    if not found:
        return None
    if any(lp <= -9999 for lp in found):
        return "logprob -9999"
    none = any(lp != lp for lp in found)  # noqa: PLR0124 - NaN
    return UntrainableReason.LOGPROB_NO_NUMBER.of() if none else UntrainableReason.LOGPROB_ABOVE_0.of()
