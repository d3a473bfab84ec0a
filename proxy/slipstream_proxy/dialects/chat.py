"""``POST /v1/chat/completions``.

What a whole reply says that the client did not ask for is taken out; copies of a large one count. A stream is read as
its events come: what is left to do at its end would keep the client waiting, and many streams may end in one moment.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from slipstream_proxy.dialects.base import (
    PACKED_HIDE,
    Dialect,
    EventHider,
    Hide,
    Injected,
    OpenAI,
    Read,
    Speech,
    Turn,
    ask_for_ids,
    counted,
    dumps,
    error_of,
    event_data,
    loads,
    nulled,
    number,
    parsed,
    put_behind,
    stream_events,
    stream_objects,
)
from slipstream_proxy.dialects.purpose import orders, quotes
from slipstream_proxy.dialects.sampling import forces
from slipstream_proxy.dialects.token_arrays import CAPTURE_FIELD, PACKED_FIELD, PACKED_MEMBER, Sampled
from slipstream_proxy.dialects.tool_calls import CallPlaces
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.json_types import Json, JsonList, JsonObject
from slipstream_proxy.log.records import CallHead, Choice, Parsed
from slipstream_proxy.parse_weight import MOST_OF_REPLY, too_heavy

if TYPE_CHECKING:
    from mypy_extensions import i64


def as_list(value: Json) -> JsonList:
    return value if isinstance(value, list) else []


def tool_ids(message: JsonObject) -> list[str]:
    return [c["id"] for c in as_list(message.get("tool_calls")) if isinstance(c, dict) and isinstance(c.get("id"), str)]


_ENGINE_ID: Final = re.compile(r"chatcmpl-tool-[0-9a-f]{8,}|call_[0-9A-Za-z]{8,}")
"""Ids that vLLM gives tool calls."""


def quoted_ids(message: JsonObject) -> list[str]:
    """Tool-call ids in the text: smolagents sends its calls back as text, with the ids that the engine gave."""
    text = text_of(message.get("content"))
    return _ENGINE_ID.findall(text) if isinstance(text, str) else []


SHORT_EVENT_BYTES: Final = 15
_LITTLE: Final = 128
"""Bytes."""


def text_of(content: Json) -> Json:
    """Content as text where it is text: clients send back a string as parts, and an empty one as null."""
    if isinstance(content, list):
        if all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
            return "".join(p["text"] for p in content)
        return content
    return content or ""


def canonical(message: JsonObject) -> bytes:
    """A digest of what a message says, whatever its client does to the fields around it. It has ``SHORT_EVENT_BYTES``
    bytes where that is so little that others say the same.
    """
    calls = []
    for call in as_list(message.get("tool_calls")):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments")
            try:
                arguments = loads(arguments.encode()) if isinstance(arguments, str) else arguments
            except ValueError:
                pass
            calls.append([function.get("name"), arguments])
    said = dumps([message.get("role"), text_of(message.get("content")), calls, message.get("tool_call_id")])
    return hashlib.blake2b(said, digest_size=SHORT_EVENT_BYTES if len(said) < _LITTLE else 16).digest()


def add_said(turn: Turn, message: JsonObject, stop: str) -> None:
    """A reply's message. ``stop``: the stop string that ended it."""
    turn.messages.append(canonical(message))
    turn.tool_ids += tool_ids(message)
    turn.quotes += quotes(message)
    turn.orders += orders(message)
    if stop:  # some clients put back the stop string that the engine cut off
        turn.messages.append(canonical({**message, "content": f"{text_of(message.get('content'))}{stop}"}))


def stop_of(choice: JsonObject) -> str:
    """The stop string that ended it."""
    stop = choice.get("stop_reason")
    return stop if isinstance(stop, str) else ""


def add_delta(message: JsonObject, delta: JsonObject, places: CallPlaces) -> None:
    """Put a delta to the message it belongs to. ``places``: the message's."""
    for name, value in delta.items():
        if name == "tool_calls":
            for part in as_list(value):
                _add_tool(message.setdefault("tool_calls", []), part, places)
        elif value is not None:
            _grow(message, name, value)


_LABELS: Final = frozenset(("format", "id", "index", "name", "role", "type"))
"""Members that say which part this is, and are no text of it. Deltas repeat them."""


def _grow(holder: JsonObject, name: str, value: Json) -> None:
    """Put behind what the holder has so far. An object's members grow each by itself, and a list's part goes on in the
    one with its index, else in the last one of its type: as OpenAI's client puts deltas together.
    """
    before = holder.get(name)
    if name in _LABELS:
        holder[name] = value
        return
    if name == "content" and isinstance(value, str) and isinstance(before, list):
        value = [{"type": "text", "text": value}]  # some engines send thoughts in parts, and then a text
    if isinstance(value, str) and not isinstance(before, dict | list):
        put_behind(holder, name, value)
    elif isinstance(value, dict):
        into = holder.setdefault(name, {}) if before is None or isinstance(before, dict) else {}
        holder[name] = into = into or {}
        for member, held in value.items():
            _grow(into, member, held)
    elif isinstance(value, list) and not isinstance(before, str):
        holder[name] = parts = before if isinstance(before, list) else []
        for part in value:
            _grow_part(parts, part)
    else:
        holder[name] = value


def _grow_part(parts: JsonList, part: Json) -> None:
    last = parts[-1] if parts else None
    if isinstance(part, str) and isinstance(last, str):
        held = {"text": last}
        put_behind(held, "text", part)
        parts[-1] = held["text"]
        return
    if isinstance(part, dict):
        into: Json = last
        if "index" in part:
            into = next((p for p in reversed(parts) if isinstance(p, dict) and p.get("index") == part["index"]), None)
        if isinstance(into, dict) and into.get("type") == part.get("type"):
            for name, value in part.items():
                _grow(into, name, value)
            return
        parts.append({})
        for name, value in part.items():
            _grow(parts[-1], name, value)
        return
    parts.append(part)


def _add_tool(calls: list[JsonObject], part: JsonObject, places: CallPlaces) -> None:
    at = places.place(part, lambda at: str(calls[at]["function"]["arguments"]))
    if at == len(calls):
        calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call, function = calls[at], part.get("function") or {}
    call["id"] = call["id"] or part.get("id")
    call["function"]["name"] = call["function"]["name"] or function.get("name") or ""
    said = function.get("arguments")
    put_behind(call["function"], "arguments", dumps(said).decode() if isinstance(said, dict) else said or "")


_END: Final = b"}\n\n"
_TRIES: Final = 8
"""How often one stream's usual event is looked for."""


class SaidMessage:
    """What one choice has said so far; ``stop`` is the stop string that ended it, which the engine cut off."""

    __slots__ = ("message", "places", "stop")

    def __init__(self) -> None:
        self.message: JsonObject = {"role": "assistant", "content": None}
        self.places = CallPlaces()
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
        if event.startswith(PACKED_MEMBER, stop):
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
            add_delta(said.message, part.get("delta") or {}, said.places)
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
        stop = event.rfind(PACKED_MEMBER)
        if stop < 0:
            stop = len(event) - len(_END)
        if not start <= end < stop:
            return
        before, after = event[:start], event[end:stop]
        try:
            other = loads(b"%b.%b}" % (before[6:], after))
        except ValueError:  # the text has an escaped quote
            return
        read.pop(PACKED_FIELD, None)
        delta[name] = "."
        if other == read:
            self._before, self._after, self._name = before, after, name
            self._message = self._said[part.get("index", 0)].message


_EMPTY: Final = b'"delta":{},"logprobs":null,"finish_reason":null'
_SPACED_EMPTY: Final = b'"delta": {}, "logprobs": null, "finish_reason": null'
_USUAL: Final = Hide(ids=True, logprobs=True)


_BEHIND_DELTA: Final = b',"logprobs":null'
_BEHIND_LOGPROBS: Final = b'},"finish_reason":'
_TO_F: Final = 3
"""From its beginning to the first ``f``."""


def _is_empty(event: bytes) -> bool:
    """Whether an event was sent for its token alone, and has no text."""
    before, _, behind = event.partition(b"}")  # mostly the end of a delta that has a text: then that is all
    if before and before[-1] != 0x7B and behind.startswith(_BEHIND_DELTA):
        return False
    return event.find(b"{},") >= 0 and (_EMPTY in event or _SPACED_EMPTY in event)


_OPENS_LOGPROBS: Final = b'"},"logprobs":{'
_DELTA: Final = b'"delta":{"'
_OPENS_IDS: Final = b'"token_ids":['


class ChatHider(EventHider):
    """Most events of a stream differ in their text, their log-probabilities and their id only. Such an event is not
    taken apart: what stands around these is compared with what stood there in the event before.
    """

    __slots__ = ("_after", "_before", "_end", "_kept", "_tries")

    def __init__(self, dialect: Dialect, hide: Hide) -> None:
        super().__init__(dialect, hide)
        self._before = b""
        """What stands before the text; nothing: no such event was seen."""
        self._after = self._end = b""
        """What stands between log-probabilities and ids, and behind these."""
        self._kept = b""
        """What of both the client gets."""
        self._tries = 0

    def event(self, event: bytes) -> bytes | None:
        if self._before and event.startswith(self._before) and event.endswith(self._end):
            shown = self._as_before(event)
            if shown is not None:
                return shown
        shown = self._dialect.event(event, self._hide)
        if self._tries < _TRIES and shown is not None and self._hide is _USUAL:
            self._tries += 1
            self._learn(event, shown)
        return shown

    def _as_before(self, event: bytes) -> bytes | None:
        """What the client gets of an event that has the same form; None: it has another."""
        start: i64 = len(self._before)
        at: i64 = start
        stop: i64 = len(event) - len(self._end)
        while at < stop and event[at] != 0x22:
            if event[at] == 0x5C:
                return None
            at += 1
        at += len(_OPENS_LOGPROBS)
        while stop > at and event[stop - 1] != 0x5B:
            sign = event[stop - 1]
            if not (0x30 <= sign <= 0x39 or sign == 0x2C):
                return None
            stop -= 1
        end: i64 = stop - len(self._after)
        if end <= at or event[at - len(_OPENS_LOGPROBS) : at] != _OPENS_LOGPROBS or event[end:stop] != self._after:
            return None
        if event.find(b"f", at) != end + _TO_F:  # another choice or another event is between them
            return None
        return b"%bnull%b" % (event[: at - 1], self._kept)

    def _learn(self, event: bytes, shown: bytes) -> None:
        """Is this what the next events will look like? Its form is taken, if it shows ``shown`` of this very event."""
        at, opens, ids = event.find(_DELTA), event.find(_OPENS_LOGPROBS), event.rfind(_OPENS_IDS)
        text = event.find(b'":"', at + len(_DELTA)) + 3
        finish, end = event.find(_BEHIND_LOGPROBS, opens), event.find(b"]", ids)
        if not 0 <= at < text <= opens < finish < ids < end:
            return
        self._before, self._end = event[:text], event[end:]
        self._after = event[finish : ids + len(_OPENS_IDS)]
        self._kept = b"%bnull%b" % (self._after[1:-1], self._end[1:])
        if self._as_before(event) != shown:
            self._before = b""


class Chat(OpenAI):
    name = "chat"
    path = "/v1/chat/completions"

    def inject(self, body: JsonObject, *, packed: bool = False) -> Injected:
        if "messages" not in body:
            return Injected(body, Hide(), "no messages")  # the engine's refusal counts the body's fields
        if packed:
            body[CAPTURE_FIELD] = 1
            return Injected(body, PACKED_HIDE)
        logprobs_hidden = reasoning = False
        ids, note = ask_for_ids(body)
        logprobs = body.get("logprobs")
        if logprobs is None or logprobs is False:
            if body.get("top_logprobs") or body.get("logprob_token_ids"):
                note = (
                    UntrainableReason.LOGPROBS_REFUSED.of()
                )  # the engine answers 400 to these without logprobs, and so must we
            else:
                logprobs_hidden = True
                body["logprobs"] = True
        elif logprobs is not True:
            note = UntrainableReason.UNREADABLE_LOGPROBS.of()
        if body.get("include_reasoning") is False:
            if forces(body) in ("structured output", "forced tool") or _masked_calls(body):
                note = UntrainableReason.HIDDEN_REASONING_GRAMMAR.of()  # showing it would move where the grammar begins
            elif not (ids and logprobs_hidden):
                note = UntrainableReason.HIDDEN_REASONING_TOKENS.of()  # with no parser in the engine nothing is hidden
            else:
                reasoning = True
                body["include_reasoning"] = True
        hide = _USUAL if ids and logprobs_hidden and not reasoning else Hide(ids, logprobs_hidden, reasoning)
        return Injected(body, hide, note)

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        if hide.reasoning:
            return _whole_by_json(reply, hide)
        cut = nulled(reply, ids=hide.ids, logprobs=hide.logprobs)
        return _whole_by_json(reply, hide) if cut is None else cut

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        if hide.reasoning:
            return _event_by_json(event, hide)
        cut = nulled(event, ids=hide.ids, logprobs=hide.logprobs)
        if cut is None:
            return _event_by_json(event, hide)
        if hide.ids and hide.logprobs and _is_empty(cut):
            return None
        return cut

    def hider(self, hide: Hide) -> EventHider:
        return ChatHider(self, hide)

    def read(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        return parsed(request, reply, head, _read, _texts)

    def whole_events(self, reply: bytes) -> JsonList:
        prompt, choices, error = _read_stream(reply)
        said = [
            {
                "index": index,
                "delta": choice.message,
                "logprobs": {"content": [{"logprob": x} for x in choice.logprobs]} if choice.logprobs else None,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop or None,
                "token_ids": choice.completion_ids or None,
            }
            for index, choice in enumerate(choices)
        ]
        tokens = {"prompt_token_ids": prompt} if prompt else {}
        return [{"object": "chat.completion.chunk", **tokens, "choices": said, **counted(reply), **error_of(error)}]

    def turn(self, body: JsonObject) -> Turn:
        turn = Turn()
        for message in as_list(body.get("messages")):
            if not isinstance(message, dict):
                continue
            turn.messages.append(canonical(message))
            if message.get("role") == "assistant":
                turn.has_reply = True
                turn.tool_ids += tool_ids(message) or quoted_ids(message)
            elif isinstance(message.get("tool_call_id"), str):
                turn.tool_ids.append(message["tool_call_id"])
        return turn

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        if stream:
            speech = ChatSpeech()
            for event in stream_events(reply):
                speech.hear(event)
            return speech.turn()
        turn = Turn(has_reply=True)
        try:
            _, choices, _ = _read(reply, stream=False)
        except Exception:
            return turn
        for choice in choices:
            add_said(turn, choice.message, choice.stop)
        return turn

    def speech(self) -> Speech:
        return ChatSpeech()


def _masked_calls(body: JsonObject) -> bool:
    """VLLM puts a grammar on the tool calls of such a request, where it does not force any."""
    tools = as_list(body.get("tools"))
    return bool(tools) and (body.get("parallel_tool_calls") is False or any(map(_is_strict, tools)))


def _is_strict(tool: Json) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and bool(function.get("strict"))


def _texts(body: JsonObject) -> tuple[JsonList, JsonList]:
    return as_list(body.get("messages")), as_list(body.get("tools"))


def _read(reply: bytes, *, stream: bool) -> Read:
    if stream:
        return _read_stream(reply)
    read = loads(reply)
    if not isinstance(read, dict):
        return [], [], None
    choices = [
        Choice(c.get("message"), c.get("finish_reason"), c.get("token_ids") or [], _logprobs(c), stop_of(c))
        for c in as_list(read.get("choices"))
    ]
    sampled = Sampled()
    sampled.add(read)
    if sampled.found:
        sampled.fill({c.get("index", 0): choice for c, choice in zip(read["choices"], choices, strict=True)})
        return sampled.prompt, choices, None
    return read.get("prompt_token_ids") or [], choices, None


def _logprobs(choice: JsonObject) -> list[float]:
    content = (choice.get("logprobs") or {}).get("content")
    return [number(t["logprob"]) for t in content] if content else []


def _read_stream(reply: bytes) -> Read:
    prompt: list[int] = []
    found: dict[int, Choice] = {}
    places: dict[int, CallPlaces] = {}
    sampled = Sampled()
    error = None
    for event in stream_objects(reply):
        sampled.add(event)
        if event.get("error"):
            error = dumps(event["error"])[:4096].decode("utf-8", "replace")
        if not prompt and event.get("prompt_token_ids"):
            prompt = event["prompt_token_ids"]
        for part in as_list(event.get("choices")):
            index = part.get("index", 0)
            choice = found.setdefault(index, Choice({"role": "assistant", "content": None}, None))
            add_delta(choice.message, part.get("delta") or {}, places.setdefault(index, CallPlaces()))
            choice.completion_ids += part.get("token_ids") or []
            choice.logprobs += _logprobs(part)
            choice.finish_reason = part.get("finish_reason") or choice.finish_reason
            choice.stop = stop_of(part) or choice.stop
    if sampled.found:
        prompt = sampled.prompt
        sampled.fill(found)
    return prompt, [found[i] for i in sorted(found)], error


def _hide_in(choice: JsonObject, hide: Hide) -> None:
    if (hide.logprobs or hide.reasoning) and "logprobs" in choice:
        choice["logprobs"] = None
    if (hide.ids or hide.reasoning) and "token_ids" in choice:
        choice["token_ids"] = None


def _whole_by_json(reply: bytes, hide: Hide) -> bytes:
    """The same by reading and writing the reply: for hidden reasoning and engines that order their keys otherwise."""
    if too_heavy(reply, MOST_OF_REPLY):
        return reply
    try:
        read = loads(reply)
        for choice in read["choices"]:
            _hide_in(choice, hide)
            if hide.reasoning and choice["message"].get("reasoning") is not None:
                choice["message"]["reasoning"] = None
    except (ValueError, KeyError, TypeError, AttributeError):
        return reply
    if hide.ids and "prompt_token_ids" in read:
        read["prompt_token_ids"] = None
    return dumps(read)


def _event_by_json(event: bytes, hide: Hide) -> bytes | None:
    data = event_data(event)
    if not data.startswith(b"{"):
        return event
    try:
        read = loads(data)
        for choice in read.get("choices", ()):
            delta = choice["delta"]
            _hide_in(choice, hide)
            says = delta.get("content") or delta.get("tool_calls")
            if hide.reasoning and "role" not in delta and not says:
                if choice.get("finish_reason") is None:
                    return None
                choice["delta"] = {}
            elif hide.reasoning and "role" not in delta:
                order = ("content", "reasoning", "tool_calls")
                choice["delta"] = {
                    k: None if k == "reasoning" else delta[k] for k in order if k == "reasoning" or k in delta
                }
            elif not delta and choice.get("finish_reason") is None and hide.ids and hide.logprobs:
                return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return event
    if hide.ids and "prompt_token_ids" in read:
        read["prompt_token_ids"] = None
    return b"data: " + dumps(read) + b"\n\n"
