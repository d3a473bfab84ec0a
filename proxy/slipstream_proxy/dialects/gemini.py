"""Google's ``POST /v1beta/models/NAME:generateContent`` and ``:streamGenerateContent``, asked as a chat completion.

No engine has this route, so there is no reply of its own that ours would have to equal: what cannot be asked as a chat
completion is refused. The address names the model and says whether the reply is a stream (``read_path``).
"""

from __future__ import annotations

import json
import re
from typing import Final
from urllib.parse import unquote

from slipstream.engines.engine import NEUTRAL_SAMPLING
from slipstream_proxy.dialects.base import (
    AsAsked,
    Read,
    ReplyTranslator,
    Turn,
    counted,
    dumps,
    error_of,
    loads,
    shown,
    stream_objects,
)
from slipstream_proxy.dialects.chat import canonical
from slipstream_proxy.dialects.through_chat import ChatEvents, ThroughChat, spoken, thought
from slipstream_proxy.dialects.tool_calls import CallPlaces, arguments_of, as_functions, call_id, object_of
from slipstream_proxy.json_types import Json, JsonList, JsonObject
from slipstream_proxy.log.records import Choice
from slipstream_proxy.usage import count_of, usage_in

GEMINI_PATH_PATTERN: Final = re.compile(r"/v1(?:beta)?/models/(.+):(generateContent|streamGenerateContent)(?:\?(.*))?")
_STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FINISH: Final = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_SAMPLING: Final = (
    ("temperature",) * 2,
    ("topP", "top_p"),
    ("topK", "top_k"),
    ("maxOutputTokens", "max_tokens"),
    ("stopSequences", "stop"),
    ("candidateCount", "n"),
    ("seed",) * 2,
    ("presencePenalty", "presence_penalty"),
    ("frequencyPenalty", "frequency_penalty"),
)
_MODES: Final = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none", "MODE_UNSPECIFIED": "auto"}
_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


def _of(holder: JsonObject, name: str) -> Json:
    """A member by Google's JSON name, or by the one of its protocol buffers: servers take both."""
    value = holder.get(name)
    return holder.get(_CAPITAL.sub("_", name).lower()) if value is None else value


def _object(value: Json, what: str) -> JsonObject:
    """Nothing is the empty object."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise AsAsked(f"{what} is no object")
    return value


def _list(value: Json, what: str) -> list[JsonObject]:
    found = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in found):
        raise AsAsked(f"{what} is no list of objects")
    return found


def to_chat(body: JsonObject) -> JsonObject:
    """The chat request. Raises ``AsAsked``."""
    if body.get("stream") not in (None, True):
        raise AsAsked("a stream that is no list of events: ask for it with ?alt=sse")
    if _of(body, "cachedContent") is not None:
        raise AsAsked("cachedContent")
    chat: JsonObject = {"model": body["model"], "messages": _Messages(body).made}
    config = _object(_of(body, "generationConfig"), "generationConfig")
    for theirs, ours in _SAMPLING:
        if (value := _of(config, theirs)) is not None:
            chat[ours] = value
    chat |= {
        name: body[name] for name in NEUTRAL_SAMPLING if name in body
    }  # what ``[models]`` puts in place of the client's
    _format(config, chat)
    if body.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    _tools(body, chat)
    return chat


def _format(config: JsonObject, chat: JsonObject) -> None:
    kind = _of(config, "responseMimeType") or "text/plain"
    schema = _of(config, "responseJsonSchema")
    schema = _schema(_of(config, "responseSchema")) if schema is None else schema
    if kind == "application/json":
        chat["response_format"] = (
            {"type": "json_object"}
            if schema is None
            else {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}
        )
    elif kind != "text/plain":
        raise AsAsked(f"responseMimeType {shown(kind)}")
    modalities = _of(config, "responseModalities")
    if isinstance(modalities, list) and any(str(m).upper() != "TEXT" for m in modalities):
        raise AsAsked("responseModalities other than TEXT")
    if _of(config, "responseLogprobs"):
        raise AsAsked("responseLogprobs")


def _schema(value: Json) -> Json:
    """A schema of OpenAPI's as JSON schema: the names of its types are small there."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    made: JsonObject = {}
    for name, inner in value.items():
        if name == "properties" and isinstance(inner, dict):
            made[name] = {k: _schema(v) for k, v in inner.items()}
        elif name == "type" and isinstance(inner, str):
            made[name] = inner.lower()
        elif name not in ("nullable", "propertyOrdering", "property_ordering"):
            made[name if name != "any_of" else "anyOf"] = inner if name in ("enum", "required") else _schema(inner)
    if value.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


def _tools(body: JsonObject, chat: JsonObject) -> None:
    tools: list[JsonObject] = []
    for tool in _list(body.get("tools"), "tools"):
        declared = _of(tool, "functionDeclarations")
        hosted = [name for name in tool if name not in ("functionDeclarations", "function_declarations")]
        if hosted:
            raise AsAsked(f"a hosted tool: {shown(hosted[0])}")
        for function in _list(declared, "functionDeclarations"):
            made: JsonObject = {"name": function.get("name")}
            if function.get("description") is not None:
                made["description"] = function["description"]
            schema = _of(function, "parametersJsonSchema")
            schema = _schema(function.get("parameters")) if schema is None else schema
            made["parameters"] = {"type": "object", "properties": {}} if schema is None else schema
            tools.append({"type": "function", "function": made})
    config = _object(_of(body, "toolConfig"), "toolConfig")
    calling = _object(_of(config, "functionCallingConfig"), "functionCallingConfig")
    allowed = _of(calling, "allowedFunctionNames")
    if isinstance(allowed, list) and allowed:
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    if not tools:
        return
    mode = _MODES.get(str(calling.get("mode") or "AUTO").upper())
    if mode is None:
        raise AsAsked(f"the mode {shown(calling.get('mode'))} of functionCallingConfig")
    chat |= {"tools": tools, "tool_choice": mode}


class _Messages:
    """The conversation as a chat's messages. Calls without an id get one by their place."""

    def __init__(self, body: JsonObject) -> None:
        self.made: list[JsonObject] = []
        self.asked: list[tuple[str, Json]] = []
        """Calls that are not answered: id and name."""
        self.calls = 0
        system = _of(body, "systemInstruction")
        if system is not None:
            parts = [{"text": system}] if isinstance(system, str) else _object(system, "systemInstruction").get("parts")
            texts = [part.get("text") for part in _list(parts, "parts")]
            if not all(isinstance(text, str) for text in texts):
                raise AsAsked("systemInstruction with more than text")
            if text := "\n".join(map(str, texts)):
                self.made.append({"role": "system", "content": text})
        contents = _list(body.get("contents"), "contents")
        if not contents:
            raise AsAsked("no contents")
        for content in contents:
            role = content.get("role") or "user"
            parts = _list(content.get("parts"), "parts")
            if role == "model":
                self._said(parts)
            elif role in ("user", "function"):
                self._told(parts)
            else:
                raise AsAsked(f"contents of the role {shown(role)}")

    def _said(self, parts: list[JsonObject]) -> None:
        message: JsonObject = {"role": "assistant"}
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[JsonObject] = []
        for part in parts:
            call = _of(part, "functionCall")
            if isinstance(call, dict):
                ident = call.get("id") or f"call_{self.calls}"
                self.calls += 1
                self.asked.append((ident, call.get("name")))
                function = {"name": call.get("name"), "arguments": json.dumps(call.get("args") or {})}
                calls.append({"id": ident, "type": "function", "function": function})
            elif isinstance(part.get("text"), str):
                (thoughts if part.get("thought") else texts).append(part["text"])
            elif part.keys() - {"thought", "thoughtSignature", "thought_signature"}:
                raise AsAsked(f"a part of the model's that is no text and no call: {shown(next(iter(part)))}")
        if thoughts:
            message["reasoning"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        message["content"] = "".join(texts) if texts or not calls else None
        self.made.append(message)

    def _told(self, parts: list[JsonObject]) -> None:
        """Results of tools are messages of their own, before what else the user says."""
        content: list[JsonObject] = []
        for part in parts:
            answer, data, file = _of(part, "functionResponse"), _of(part, "inlineData"), _of(part, "fileData")
            if isinstance(answer, dict):
                self.made.append(self._answer(answer))
            elif isinstance(part.get("text"), str):
                content.append({"type": "text", "text": part["text"]})
            elif isinstance(data, dict) and str(_of(data, "mimeType")).startswith("image/"):
                url = f"data:{_of(data, 'mimeType')};base64,{data.get('data')}"
                content.append({"type": "image_url", "image_url": {"url": url}})
            elif isinstance(file, dict) and str(_of(file, "mimeType")).startswith("image/"):
                content.append({"type": "image_url", "image_url": {"url": _of(file, "fileUri")}})
            else:
                raise AsAsked(f"a part that is no text, image or result: {shown(next(iter(part), None))}")
        if content:
            alone = len(content) == 1 and content[0]["type"] == "text"
            self.made.append({"role": "user", "content": content[0]["text"] if alone else content})

    def _answer(self, answer: JsonObject) -> JsonObject:
        if answer.get("parts"):
            raise AsAsked("a tool's result with more than text: functionResponse.parts")
        name = answer.get("name")
        known = [i for i, n in self.asked if n == name] or [i for i, _ in self.asked]
        ident = answer.get("id") or (known[0] if known else "")
        self.asked = [pair for pair in self.asked if pair[0] != ident]
        return {"role": "tool", "tool_call_id": ident, "content": _result(answer.get("response"))}


def _result(response: Json) -> str:
    """Google's clients put a text under ``output`` or ``result``."""
    if isinstance(response, dict) and len(response) == 1:
        text = response.get("output", response.get("result"))
        if isinstance(text, str):
            return text
    return response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)


def _usage(usage: JsonObject) -> JsonObject:
    asked, said = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    thought = count_of(usage.get("completion_tokens_details"), "reasoning_tokens")
    cached = count_of(usage.get("prompt_tokens_details"), "cached_tokens")
    made: JsonObject = {"promptTokenCount": asked, "candidatesTokenCount": max(0, said - thought)}
    made["totalTokenCount"] = count_of(usage, "total_tokens") or asked + said
    if thought:
        made["thoughtsTokenCount"] = thought
    if cached:
        made["cachedContentTokenCount"] = cached
    return made


class _Candidate:
    """One choice of a stream: what of it is not said yet."""

    __slots__ = ("calls", "finish", "places")  # no dataclass: the ``__init__`` of one is not compiled

    def __init__(self) -> None:
        self.calls: dict[int, JsonObject] = {}
        """A call is said when all of it is there."""
        self.places = CallPlaces()
        self.finish: str | None = None

    def said(self, at: int) -> str:
        return "".join(self.calls[at]["arguments"])


class GeminiTranslator(ChatEvents):
    """A chat reply as Google's: ``whole`` at once, or event by event."""

    context_needed = False

    def __init__(self, asked: JsonObject) -> None:
        self.context: int | None = None
        config = _object(_of(asked, "generationConfig"), "generationConfig")
        thinking = _object(_of(config, "thinkingConfig"), "thinkingConfig")
        self.thoughts = bool(_of(thinking, "includeThoughts"))
        self.template_needed = _of(thinking, "thinkingBudget") == 0
        self.head: JsonObject = {}
        self.usage: JsonObject = {}
        self.candidates: dict[int, _Candidate] = {}

    def settle(self, chat: JsonObject, *, merges: bool | None, quiet: str | None) -> None:
        """A budget of 0 tokens is no thoughts, where the template knows a way."""
        self.template_needed = False
        if quiet is not None:
            chat["reasoning_effort"] = quiet

    def whole(self, reply: bytes) -> bytes:
        read = loads(reply)
        self._begin(read)
        self.usage = usage_in(read, {})
        made: list[JsonObject] = []
        for given in read["choices"]:
            choice = as_functions(given, "message")
            message = choice["message"]
            parts = self._spoken(message)
            calls, finish = _called(message.get("tool_calls") or [], choice.get("finish_reason"))
            made.append(_candidate(choice.get("index") or 0, [*parts, *calls] or [{"text": ""}], finish))
        return dumps(self._response(made))

    def _begin(self, read: JsonObject) -> None:
        self.head = {"modelVersion": read.get("model") or "", "responseId": read.get("id") or ""}

    def _response(self, candidates: list[JsonObject]) -> JsonObject:
        usage = {"usageMetadata": _usage(self.usage)} if self.usage else {}
        return {"candidates": candidates, **usage, **self.head}

    def _spoken(self, said: JsonObject) -> list[JsonObject]:
        """Thoughts are told to a client that asked for them."""
        parts: list[JsonObject] = []
        if self.thoughts and (thoughts := thought(said)):
            parts.append({"text": thoughts, "thought": True})
        if text := spoken(said):
            parts.append({"text": text})
        return parts

    def _events(self, read: JsonObject) -> list[bytes]:
        self._begin(read)
        self.usage = usage_in(read, self.usage)
        made: list[JsonObject] = []
        for choice in read.get("choices") or ():
            index, delta = choice.get("index") or 0, choice.get("delta") or {}
            candidate = self.candidates.setdefault(index, _Candidate())
            candidate.finish = choice.get("finish_reason") or candidate.finish
            for call in delta.get("tool_calls") or ():
                at = candidate.places.place(call, candidate.said)
                _grow(candidate.calls.setdefault(at, {"id": None, "name": "", "arguments": []}), call)
            if parts := self._spoken(delta):
                made.append(_candidate(index, parts, None))
        return [_sse({"candidates": made, **self.head})] if made else []

    def _end(self) -> bytes | None:
        if not self.candidates:
            return None
        made: list[JsonObject] = []
        for index, candidate in sorted(self.candidates.items()):
            calls = [
                {"id": c["id"], "function": {"name": c["name"], "arguments": "".join(c["arguments"])}}
                for c in candidate.calls.values()
            ]
            parts, finish = _called(calls, candidate.finish)
            made.append(_candidate(index, parts or [{"text": ""}], finish))
        return _sse(self._response(made))

    def _error(self, error: JsonObject) -> bytes:
        code = error.get("code")
        return _sse(_said(code if isinstance(code, int) else 500, str(error.get("message"))))


def _grow(call: JsonObject, delta: JsonObject) -> None:
    function = delta.get("function") or {}
    call["id"] = call["id"] or delta.get("id")
    call["name"] = call["name"] or function.get("name") or ""
    said = function.get("arguments")
    call["arguments"].append(json.dumps(said) if isinstance(said, dict) else said or "")


def _called(calls: JsonList, finish: Json) -> tuple[list[JsonObject], str | None]:
    """Calls as parts, and how the candidate ended. A call that was cut short or is no JSON object must not run."""
    end = _FINISH.get(finish) if isinstance(finish, str) else None
    parts: list[JsonObject] = []
    for call in calls:
        function = call["function"]
        args = object_of(arguments_of(function))
        if args is None or not function.get("name"):
            return parts, end if end == "MAX_TOKENS" else "MALFORMED_FUNCTION_CALL"
        parts.append({"functionCall": {"id": call_id(call), "name": function["name"], "args": args}})
    return parts, end


def _candidate(index: int, parts: list[JsonObject], finish: str | None) -> JsonObject:
    made: JsonObject = {"content": {"parts": parts, "role": "model"}}
    return made | ({"finishReason": finish} if finish is not None else {}) | {"index": index}


def _sse(body: JsonObject) -> bytes:
    return b"data: " + dumps(body) + b"\n\n"


def _said(status: int, message: str) -> JsonObject:
    name = _STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


class Gemini(ThroughChat):
    name = "gemini"
    path = "/v1beta/models"
    paths = GEMINI_PATH_PATTERN.pattern
    routeless = True

    def read_path(self, path: str, body: JsonObject) -> None:
        m = GEMINI_PATH_PATTERN.fullmatch(path)
        if m is None:
            return
        body["model"] = unquote(m[1])
        body.pop("stream", None)
        if m[2] == "streamGenerateContent":
            body["stream"] = True if "alt=sse" in (m[3] or "").split("&") else "list"

    def _to_chat(self, body: JsonObject) -> JsonObject:
        return to_chat(body)

    def _back(self, body: JsonObject) -> ReplyTranslator:
        return GeminiTranslator(body)

    def terminal(self, event: bytes) -> bool:
        return event.find(b'"finishReason"') >= 0

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return dumps(_said(status, message))

    def error_event(self, status: int, message: str, kind: str, relayed: bytes = b"") -> bytes:
        return _sse(_said(status, message))

    def _texts(self, body: JsonObject) -> tuple[JsonList, JsonList]:
        system = _of(body, "systemInstruction")
        first: JsonList = [] if system is None else [{"role": "system", "content": system}]
        contents, tools = body.get("contents"), body.get("tools")
        return [*first, *(contents if isinstance(contents, list) else [])], tools if isinstance(tools, list) else []

    def _read(self, reply: bytes, *, stream: bool) -> Read:
        parts: dict[int, list[JsonObject]] = {}
        ends: dict[int, str | None] = {}
        error = None
        for read in stream_objects(reply) if stream else [loads(reply)]:
            if read.get("error") is not None:
                error = dumps(read["error"])[:4096].decode("utf-8", "replace")
            for candidate in read.get("candidates") or ():
                index = candidate.get("index") or 0
                parts.setdefault(index, []).extend(candidate["content"]["parts"])
                ends[index] = candidate.get("finishReason") or ends.get(index)
        said = [Choice({"role": "model", "parts": _joined(p)}, ends[i]) for i, p in sorted(parts.items())]
        return [], said, error

    def whole_events(self, reply: bytes) -> JsonList:
        _, choices, error = self._read(reply, stream=True)
        said = [
            {"index": index, "content": choice.message, "finishReason": choice.finish_reason}
            for index, choice in enumerate(choices)
        ]
        return [{"candidates": said, **counted(reply), **error_of(error)}]

    def turn(self, body: JsonObject) -> Turn:
        contents = body.get("contents")
        return self._turn(contents if isinstance(contents, list) else [contents])

    def _add(self, turn: Turn, item: JsonObject) -> None:
        turn.has_reply = turn.has_reply or item.get("role") == "model"
        parts = item.get("parts")
        said: list[Json] = []
        for part in _joined([p for p in parts if isinstance(p, dict)] if isinstance(parts, list) else []):
            for name in ("functionCall", "functionResponse"):
                held = _of(part, name)
                if isinstance(held, dict):
                    if isinstance(held.get("id"), str):
                        turn.tool_ids.append(held["id"])
                    said.append([name, held.get("name"), held.get("args"), held.get("response")])
            if part.get("text"):
                said.append(part["text"])
        turn.messages.append(canonical({"role": item.get("role") or "user", "content": said}))


def _joined(parts: list[JsonObject]) -> list[JsonObject]:
    """Without thoughts; texts that follow each other are one, as clients keep what a stream brought in parts."""
    made: list[JsonObject] = []
    for part in parts:
        text = part.get("text")
        if part.get("thought") is True or text == "":
            continue
        if isinstance(text, str) and made and isinstance(made[-1].get("text"), str):
            made[-1] = {"text": made[-1]["text"] + text}
        else:
            made.append({"text": text} if isinstance(text, str) else part)
    return made
