"""Messages in the spellings of other programs, as chat completions have them: OpenAI's, Anthropic's, Gemini's,
Bedrock's, Vercel's and OpenTelemetry's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slipstream_chat.report import Place, Value
from slipstream_chat.values import first, listed, mapping, parsed, text_of, tool_call

Part = Literal["text", "media", "call", "answer", "thought"]
Found = Iterator[tuple[Part, Value]]
TEXT_PART_TYPES = ("text", "input_text", "output_text", "summary_text", "refusal")
MEDIA_PART_TYPES = ("image_url", "input_audio", "file", "video_url", "audio_url")
SILENT_PART_TYPES = ("step-start", "redacted_thinking", "source-url", "source", "cache_point", "cachePoint")
"""Parts that say nothing which a model could be shown again."""


def part_of(item: Value, place: Place) -> Found:
    """What one part of a content is, with its value: a call as it stands, an answer as the tool's message."""
    if isinstance(item, str):
        yield "text", item
        return
    part = mapping(item)
    kind = str(part.get("type") or "")
    if (reader := PART_KINDS.get(kind)) is not None:
        yield from reader(part)
    elif is_call(part):
        yield from _call(part)
    elif kind == "message":  # what a reply of the responses format is made of
        for inner in listed(part.get("content")):
            yield from part_of(inner, place)
    elif kind.startswith("tool-"):
        yield from _vercel_ui(part, kind.removeprefix("tool-"))
    elif kind in SILENT_PART_TYPES:
        place.drop(f"part {kind}", "it says nothing that a model could be shown again")
    elif not kind or kind in TEXT_PART_TYPES:
        yield from _untyped(part, place)
    else:
        place.drop(f"part {kind}", "chat completions have no such part")


def is_call(value: Value) -> bool:
    """Whether an object is a tool call by itself, in OpenAI's spelling or in Vercel's."""
    part = mapping(value) if isinstance(value, Mapping) else {}
    if "role" in part:
        return False
    if part.get("type") in CALL_KINDS:
        return True
    inner = mapping(part.get("function")) or (part if part.get("type") == "function" else {})
    if "name" in inner and "arguments" in inner:
        return True
    return (
        "toolCallId" in part
        and "toolName" in part
        and bool({"args", "input"} & set(part))
        and not RESULT_FIELDS & set(part)
    )


def answer(ident: Value, content: Value, name: Value = None) -> dict[str, Value]:
    made: dict[str, Value] = {"role": "tool", **({"tool_call_id": text_of(ident)} if ident else {})}
    return made | ({"name": name} if name else {}) | {"content": _plain(content)}


def _plain(content: Value) -> str:
    """A tool's answer as text: of parts, their texts."""
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return "\n".join(str(mapping(p)["text"]) for p in content)
    told = mapping(content) if isinstance(content, Mapping) else {}
    if set(told) == {"type", "value"}:  # Vercel's {"type": "json", "value": …}
        content = told["value"]
    return "" if content is None else text_of(content)


def _text(part: Mapping[str, Value]) -> Found:
    value = first(part, "text", "content", "refusal")
    if value not in (None, ""):
        yield "text", value


def _thought(part: Mapping[str, Value]) -> Found:
    value = first(part, "thinking", "text", "reasoning", "content", "reasoningText")
    if isinstance(value, list):
        value = "\n".join(text_of(mapping(v).get("text", "")) for v in value)
    if value:
        yield "thought", value


def _call(part: Mapping[str, Value]) -> Found:
    yield "call", part


def _answer(part: Mapping[str, Value]) -> Found:
    ident = first(part, "tool_use_id", "toolCallId", "tool_call_id", "call_id", "id", "toolUseId")
    yield (
        "answer",
        answer(ident, first(part, "content", "result", "response", "output"), first(part, "toolName", "name")),
    )


def _image(part: Mapping[str, Value]) -> Found:
    source = mapping(part.get("source"))
    data, kind = first(source, "data"), first(source, "media_type") or first(part, "mimeType", "mime_type", "mediaType")
    url = first(source, "url") or first(part, "image", "image_url", "url", "uri", "content", "data")
    if data is not None:
        url = f"data:{kind or 'image/png'};base64,{data}"
    elif isinstance(url, str) and not url.startswith(("data:", "http")) and len(url) > 64:
        url = f"data:{kind or 'image/png'};base64,{url}"
    yield "media", {"type": "image_url", "image_url": url if isinstance(url, Mapping) else {"url": text_of(url)}}


def _media(part: Mapping[str, Value]) -> Found:
    yield "media", dict(part)


def _invocation(part: Mapping[str, Value]) -> Found:
    told = mapping(part.get("toolInvocation"))
    yield "call", told
    if told.get("result") is not None:
        yield "answer", answer(told.get("toolCallId"), told["result"], told.get("toolName"))


def _dynamic(part: Mapping[str, Value]) -> Found:
    yield from _vercel_ui(part, str(part.get("toolName") or ""))


def _vercel_ui(part: Mapping[str, Value], name: str) -> Found:
    yield "call", {"id": part.get("toolCallId"), "name": name, "arguments": part.get("input")}
    if (told := first(part, "output", "errorText")) is not None:
        yield "answer", answer(part.get("toolCallId"), told, name)


def _untyped(part: Mapping[str, Value], place: Place) -> Found:
    """Gemini's and Bedrock's parts: the field that is there says what it is."""
    call = mapping(first(part, "functionCall", "function_call", "toolUse"))
    told = mapping(first(part, "functionResponse", "function_response", "toolResult"))
    blob = mapping(first(part, "inlineData", "inline_data", "fileData", "file_data"))
    if call:
        yield "call", call
    elif told:
        content = first(told, "response", "content")
        inner = mapping(content)
        content = inner.get("result", inner.get("output", content)) if len(inner) == 1 else content
        if isinstance(content, list):
            content = [{"text": mapping(p).get("text", json.dumps(p, default=str))} for p in content]
        yield "answer", answer(first(told, "id", "toolUseId"), content, told.get("name"))
    elif blob:
        yield from _image({"url": first(blob, "fileUri", "file_uri", "data"), **blob})
    elif isinstance(part.get("reasoningContent"), Mapping):
        yield from _thought(mapping(part["reasoningContent"]))
    elif part.get("thought") is True:
        yield "thought", part.get("text") or ""
    elif first(part, "text", "content") is not None:
        yield from _text(part)
    elif listed(part.get("content")):
        yield from (pair for p in listed(part["content"]) for pair in part_of(p, place))
    elif part:
        place.drop(f"part with {', '.join(sorted(part))}", "chat completions have no such part")


RESULT_FIELDS = {"result", "output", "errorText"}
CALL_KINDS = ("tool_use", "tool-call", "tool_call", "toolCall", "function_call", "server_tool_use")
PART_KINDS: dict[str, Callable[[Mapping[str, Value]], Found]] = {
    **dict.fromkeys(TEXT_PART_TYPES, _text),
    **dict.fromkeys(("thinking", "reasoning"), _thought),
    **dict.fromkeys(CALL_KINDS, _call),
    **dict.fromkeys(("tool_result", "tool-result", "tool_call_response", "tool_result_part"), _answer),
    **dict.fromkeys(("image", "input_image", "uri", "blob"), _image),
    **dict.fromkeys(MEDIA_PART_TYPES, _media),
    "tool-invocation": _invocation,
    "dynamic-tool": _dynamic,
}


Message = dict[str, Value]
ROLE_NAMES = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "developer": "system",
    "function": "tool",
    "gpt": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "agent": "assistant",
    **dict.fromkeys(("chatgpt", "bing", "bard", "claude", "gemini"), "assistant"),
    "humanmessage": "user",
    "aimessage": "assistant",
    "humanmessagechunk": "user",
    "aimessagechunk": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
    "toolmessagechunk": "tool",
    "functionmessage": "tool",
    "observation": "tool",
    "function_response": "tool",
    "chatmessage": "user",
}
"""Names of roles elsewhere → OpenAI's."""
KNOWN_ROLES = ("system", "user", "assistant", "tool")
UNSHOWN_FIELDS = frozenset(
    [
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
        "name",
        "type",
        "id",
        "from",
        "value",
        "parts",
        "additional_kwargs",
        "response_metadata",
        "usage_metadata",
        "invalid_tool_calls",
        "example",
        "lc",
        "kwargs",
        "message",
        "messages",
        "function_call",
        "refusal",
        "weight",
        "reasoning_content",
        "reasoning",
        "finish_reason",
        "finishReason",
        "stop_reason",
        "stop_sequence",
        "index",
        "logprobs",
        "usage",
        "model",
        "object",
        "status",
        "annotations",
        "trainable",
        "text",
        "toolCalls",
        "tool_use_id",
        "toolCallId",
        "toolName",
        "output",
        "input",
        "call_id",
        "arguments",
        "createdAt",
        "timestamp",
        "provider_specific_fields",
        "thinking_blocks",
        "images",
        "turn_idx",
        "cost",
        "data",
        "artifact",
        "phase",
        "reasoning_details",
    ]
)
"""Fields that are read, or that say nothing of what was said."""
GRADE_FIELDS = frozenset(("reward", "score", "grade", "advantage"))
GRADE_TEXT = (
    "no import takes a single reply's grade: post it for the call that the import made (POST …/rewards with `call`)"
)
SHOWN_FIELDS = frozenset(
    (
        *("role", "from", "content", "parts", "text", "value", "tool_calls", "toolCalls", "function_call", "refusal"),
        *("kwargs", "data", "message", "messages", "additional_kwargs", "reasoning_content", "toolInvocations"),
        *("error", "object", "choices", "usage"),
    )
)
"""An object with none of these is neither a message nor what an API answered."""


@dataclass(slots=True)
class Spoken:
    """A message while its parts are read."""

    texts: list[str] = field(default_factory=list)
    kept: list[Value] = field(default_factory=list)
    calls: list[Value] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def add(self, part: Part, value: Value) -> None:
        if part == "text":
            self.texts.append(text_of(value))
            self.kept.append({"type": "text", "text": text_of(value)})
        elif part == "media":
            self.kept.append(value)
        elif part == "call":
            self.calls.append(value)
        elif part == "answer":
            self.answers.append(mapping(value))
        elif part == "thought":
            self.thoughts.append(text_of(value))

    @property
    def content(self) -> Value:
        if len(self.kept) > len(self.texts):
            return self.kept
        return "\n".join(self.texts) if self.texts else None


def role_of(name: Value) -> str:
    text = str(name).lower()
    return ROLE_NAMES.get(text, text)


def is_native(message: Mapping[str, Value]) -> bool:
    """Whether a message is as OpenAI's chat completions have it already, but for null columns."""
    if message.get("role") not in (*KNOWN_ROLES, "developer") or "parts" in message or message.get("toolCalls"):
        return False
    if message.get("additional_kwargs") or message.get("function_call"):
        return False
    content, calls = message.get("content"), parsed(message.get("tool_calls"))
    if isinstance(content, list) and not all(
        isinstance(p, dict)
        and p.get("type") in ("text", "image_url", "input_audio", "file", "refusal", "video_url", "audio_url")
        for p in content
    ):
        return False
    if not (content is None or isinstance(content, str | list)):
        return False
    return all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in listed(calls))


def is_plain(value: Mapping[str, Value]) -> bool:
    """Whether an object is neither a message, nor a part of one, nor what an API answered: somebody said it as JSON."""
    kind = value.get("type")
    return SHOWN_FIELDS.isdisjoint(value) and not names_role(kind) and kind not in PART_KINDS and kind != "message"


def _unframed(value: Value, role: str) -> Value:
    """JSON in a text, read where it is a message; any other is a text, and so is what a model answered as JSON."""
    read = parsed(value)
    text = isinstance(value, str) or role == "assistant"
    if text and isinstance(read, Mapping) and is_plain(read):
        return text_of(value) if read else None
    return read


def expand(value: Value, role: str, place: Place) -> list[Message]:
    """The chat messages that one message of a log says. ``role``: of one that names none.

    Several where it holds answers of tools beside text, none where it says nothing.
    """
    value = _unframed(value, role)
    if isinstance(value, str):
        return [{"role": role, "content": value}] if value else []
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and role_of(value[0]) in KNOWN_ROLES:
        return expand({"role": value[0], "content": value[1]}, role, place)  # LangChain's ("human", "hi")
    if not isinstance(value, Mapping):
        if value is not None:
            place.drop("a message", "it is neither text nor an object")
        return []
    own = {str(k): v for k, v in value.items()}
    calls = listed(own.get("content")) if isinstance(own.get("content"), str) else []
    if calls and own.get("role") == "assistant" and all("toolCallId" in mapping(c) and is_call(c) for c in calls):
        own["content"] = calls  # no model says this by itself
    if isinstance(own.get("weight"), str | bool):
        own["weight"] = place.number(own["weight"], "messages.weight")
    for name in ("kwargs", "data", "message"):  # LangChain's serialised messages, OpenAI's choices
        if isinstance(own.get(name), Mapping) and ("content" in mapping(own[name]) or name == "message"):
            said = role_of(listed(own.get("id"))[-1]) if name == "kwargs" and listed(own.get("id")) else own.get("type")
            inner = mapping(own[name])
            named = inner.get("role") or (said if role_of(said) in KNOWN_ROLES else None) or inner.get("type") or role
            return expand({**inner, "role": named if role_of(named) in KNOWN_ROLES else role}, role, place)
    return [_kept(own, place)] if is_native(own) else _read(own, role, place)


def _kept(own: Mapping[str, Value], place: Place) -> Message:
    """A message of OpenAI's shape: columns of other messages (null) and marks of trainers are left out."""
    left_out = {"trainable", *GRADE_FIELDS}
    message = {k: v for k, v in own.items() if (v is not None or k == "content") and k not in left_out}
    for name in GRADE_FIELDS & own.keys():
        if own[name] is not None:
            place.drop(f"messages' field {name}", GRADE_TEXT)
    message.setdefault("content", None)
    content = message["content"]
    if message["role"] in ("assistant", "tool") and isinstance(content, list):
        texts = [mapping(p).get("text") for p in content]
        if all(isinstance(t, str) for t in texts):  # as most chat templates take them
            message["content"] = "\n".join(map(str, texts))
    if message["role"] == "developer":
        message["role"] = "system"
    if message.get("tool_calls") is not None:
        message["tool_calls"] = [call_of(c, place) for c in listed(message["tool_calls"])]
        if not message["tool_calls"]:
            del message["tool_calls"]
    return message


def call_of(value: Value, place: Place) -> Value:
    """A tool call as chat completions have it, its arguments a JSON text."""
    call = mapping(value)
    function = mapping(call.get("function")) or mapping(call.get("custom")) or call
    name = next((function[n] for n in ("name", "toolName", "tool_name", "function_name") if function.get(n)), None)
    if name is None:
        place.drop("a tool call", "it names no tool")
    given = first(function, "arguments", "args", "input", "parameters")
    ident = next((call[n] for n in ("id", "toolCallId", "tool_call_id", "call_id", "toolUseId") if call.get(n)), None)
    return tool_call(ident, name or "", given)


def _read(own: Mapping[str, Value], role: str, place: Place) -> list[Message]:
    """A message of any other shape."""
    named = role_of(next((own[n] for n in ("role", "from", "type") if names_role(own.get(n))), role))
    made = Spoken()
    for name in ("thinking_blocks", "reasoning_content", "reasoning"):
        if isinstance(own.get(name), str):
            made.add("thought", own[name])
            break
    content = first(own, "content", "parts", "value", "text")
    if "parts" in own and isinstance(parsed(own["parts"]), list):
        content = own["parts"]
    if named == "tool" and isinstance(content, Mapping):
        content = _plain(content)
    content_into(made, content, place)
    more = mapping(own.get("additional_kwargs"))
    for calls in (own.get("tool_calls"), more.get("tool_calls"), own.get("toolCalls")):
        if found := listed(calls):
            made.calls += [call_of(c, place) for c in found]
            break
    _answers_beside(made, own, place)
    if single := own.get("function_call") or more.get("function_call"):
        call = call_of({"function": single}, place)
        if not made.calls:
            made.calls.append(call)
        elif mapping(call).get("function") not in [mapping(c).get("function") for c in made.calls]:
            place.drop("messages' field function_call", "the message has tool_calls, too, and this is none of them")
    if isinstance(thought := more.get("reasoning_content"), str) and not made.thoughts:
        made.thoughts.append(thought)
    for name in own.keys() - UNSHOWN_FIELDS:
        if own[name] not in (None, "", [], {}):
            why = GRADE_TEXT if name in GRADE_FIELDS else "chat completions have no such field"
            place.drop(f"messages' field {name}", why)
    return _messages(named, own, made)


def _answers_beside(made: Spoken, own: Mapping[str, Value], place: Place) -> None:
    """What tools answered, where a log (Gemini CLI's) keeps it in the call itself."""
    for call in map(mapping, listed(own.get("toolCalls"))):
        told = call.get("result")
        if told in (None, "", [], {}):
            continue
        before = len(made.answers)
        parts = listed(told)
        if parts and all("functionResponse" in mapping(part) for part in parts):
            content_into(made, parts, place)
        if len(made.answers) == before:
            text = told if isinstance(told, str) else json.dumps(told, default=str)
            ident = text_of(call.get("id", ""))
            answer: Message = {"role": "tool", "content": text}
            made.answers.append(answer | ({"tool_call_id": ident} if ident else {}))


def names_role(value: Value) -> bool:
    return isinstance(value, str) and role_of(value) in KNOWN_ROLES


def content_into(made: Spoken, content: Value, place: Place) -> None:
    if isinstance(content, str):
        if content:
            made.add("text", content)
        return
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        if content is not None:
            made.add("text", json.dumps(content, default=str))
        return
    for item in content:
        for part, value in part_of(item, place):
            made.add(part, call_of(value, place) if part == "call" else value)


def _messages(role: str, own: Mapping[str, Value], made: Spoken) -> list[Message]:
    ident = next((own[n] for n in ("tool_call_id", "tool_use_id", "toolCallId", "call_id") if own.get(n)), None)
    if role == "tool" and not made.answers:
        answer: Message = {"role": "tool", "content": made.content or ""}
        return [
            answer
            | ({"tool_call_id": text_of(ident)} if ident else {})
            | ({"name": own["name"]} if own.get("name") else {})
        ]
    found = list(made.answers)
    if made.kept or made.calls or made.thoughts:
        message: Message = {"role": role if role in KNOWN_ROLES else "user", "content": made.content}
        if made.calls:
            message["tool_calls"] = made.calls
        if made.thoughts and role == "assistant":
            message["reasoning_content"] = "\n".join(made.thoughts)
        message |= {n: own[n] for n in ("weight", "refusal") if own.get(n) is not None}
        if isinstance(own.get("name"), str) and role in ("user", "system") and own["name"]:
            message["name"] = own["name"]
        # a model calls its tools before it is answered; a user's message comes after what the tools said
        found = [message, *found] if role == "assistant" else [*found, message]
    elif role == "assistant" and not found and ("content" in own or "parts" in own):
        found = [{"role": role, "content": ""}]
    return found


def grow(message: Message, more: Message) -> None:
    """The next part of the same reply."""
    for name in ("content", "reasoning_content"):
        if more.get(name):
            message[name] = f"{message[name]}\n{more[name]}" if message.get(name) else more[name]
    if more.get("tool_calls"):
        message["tool_calls"] = [*listed(message.get("tool_calls")), *listed(more["tool_calls"])]


def plain_key(message: Message) -> str:
    """What a message says, however it is spelt: the same for a reply and for its copy in a later call's history."""
    content = message.get("content")
    if isinstance(content, list) and all(mapping(p).get("type") == "text" for p in content):
        content = "\n".join(text_of(mapping(p).get("text", "")) for p in content)
    calls = [mapping(mapping(c).get("function")) for c in listed(message.get("tool_calls"))]
    said = [[c.get("name"), parsed(c.get("arguments"))] for c in calls]
    text = content.strip() if isinstance(content, str) else content
    return json.dumps([message.get("role"), text or "", said], sort_keys=True, default=str)


def with_ids(messages: Sequence[Message]) -> list[Message]:
    """Tool calls without an id get one by their place, and the tools' answers the ids of the calls that they answer."""
    made: list[Message] = []
    asked: list[tuple[Value, Value]] = []
    for place, message in enumerate(messages):
        if calls := listed(message.get("tool_calls")):
            named = [
                mapping(c) | ({} if mapping(c).get("id") else {"id": f"call_{place}_{n}"}) for n, c in enumerate(calls)
            ]
            message = message | {"tool_calls": named}
            asked = [(c["id"], mapping(c.get("function")).get("name")) for c in named]
        elif message.get("role") == "tool":
            ident = message.get("tool_call_id") or next((i for i, name in asked if name == message.get("name")), None)
            ident = ident or (asked[0][0] if asked else None)
            asked = [pair for pair in asked if pair[0] != ident]
            if ident and not message.get("tool_call_id"):
                message = message | {"tool_call_id": ident}
        made.append(message)
    return made
