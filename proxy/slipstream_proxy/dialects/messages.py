"""Anthropic's ``POST /v1/messages``: asked as a chat completion, since only that route gives token ids.

vLLM's own messages route makes a chat request out of the client's, runs it as one, and makes the message out of the
chat reply (0.32, ``entrypoints/anthropic/serving.py``). The same is done here. What is not known to come out equal
raises ``AsAsked``: such a call goes to the engine's own route as it is, and is recorded without ids.
"""

from __future__ import annotations

import json
import uuid

from slipstream_proxy.dialects.base import (
    AsAsked,
    Read,
    ReplyTranslator,
    Turn,
    counted,
    dumps,
    error_of,
    list_of,
    loads,
    put_behind,
    shown,
    stream_objects,
)
from slipstream_proxy.dialects.chat import canonical
from slipstream_proxy.dialects.through_chat import ChatEvents, ThroughChat, items, spoken, thought
from slipstream_proxy.dialects.tool_calls import CallLine, StreamedCall, arguments_of, as_functions, call_id, object_of
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.json_types import Json, JsonList, JsonObject
from slipstream_proxy.log.records import Choice
from slipstream_proxy.usage import count_of


def _usage(usage: Json) -> dict[str, int]:
    if not isinstance(usage, dict):
        return {"input_tokens": 0, "output_tokens": 0}
    details = usage.get("prompt_tokens_details")
    known = details if isinstance(details, dict) else {}
    read, written = count_of(known, "cached_tokens"), count_of(known, "created_cache_tokens")
    made = {"input_tokens": max(0, count_of(usage, "prompt_tokens") - read - written)}
    made["output_tokens"] = count_of(usage, "completion_tokens")
    if known.get("created_cache_tokens") is not None:
        made["cache_creation_input_tokens"] = written
    if known.get("cached_tokens") is not None:
        made["cache_read_input_tokens"] = read
    return made


def _stop(finish: str | None, stop: Json, *, tools: bool, whole: bool) -> tuple[str | None, str | None]:
    """(stop_reason, stop_sequence). ``whole``: the last tool call is complete. One that was cut short must not run."""
    if finish == "length":
        return "max_tokens", None
    if finish not in ("stop", "tool_calls"):
        return None, None
    if tools and whole:
        return "tool_use", None
    if isinstance(stop, str):
        return "stop_sequence", stop
    return ("tool_use" if finish == "tool_calls" or tools else "end_turn"), None


class MessagesTranslator(ChatEvents):
    """A chat reply as a message: ``whole`` at once, or event by event."""

    context_needed = False

    def __init__(self, asked: JsonObject) -> None:
        self.context: int | None = None
        thinking = asked.get("thinking")
        self.quiet = isinstance(thinking, dict) and thinking.get("type") == "disabled"
        self.template_needed = self.quiet or any(
            isinstance(m, dict) and m.get("role") == "system" for m in asked["messages"]
        )
        self.finish: str | None = None
        self.stop: Json = None
        self.begun = False
        self.ended = False
        """Its reason to stop is said."""
        self.index = 0
        self.kind: str | None = None
        self.calls = CallLine()
        self.used = False
        self.arguments = ""
        """Of the last call."""
        self.later: list[tuple[str, str, str]] = []
        """What came while a tool's block was open: as ``_say`` takes it."""

    def settle(self, chat: JsonObject, *, merges: bool | None, quiet: str | None) -> None:
        self.template_needed = False
        system = [m for m in chat["messages"] if m["role"] == "system"]
        if len(system) > 1 or (system and chat["messages"][0] is not system[0]):
            if merges is None:
                raise AsAsked(UntrainableReason.SYSTEM_PLACE.of())
            if merges:
                others = [m for m in chat["messages"] if m["role"] != "system"]
                chat["messages"] = [{"role": "system", "content": "".join(m["content"] for m in system)}, *others]
        if self.quiet:
            if quiet is None:
                raise AsAsked(UntrainableReason.THINKING_DISABLED.of())
            chat["reasoning_effort"] = quiet

    def whole(self, reply: bytes) -> bytes:
        """Raises ValueError where the engine's own route could not make a message of it either."""
        read = loads(reply)
        choice = as_functions(read["choices"][0], "message")
        message = choice["message"]
        calls = message.get("tool_calls") or []
        content: list[JsonObject] = []
        if thoughts := thought(message):
            content.append({"type": "thinking", "thinking": thoughts, "signature": uuid.uuid4().hex})
        if text := spoken(message):
            content.append({"type": "text", "text": text})
        for call in calls:
            function = call["function"]
            given = object_of(arguments_of(function))
            if given is None and choice.get("finish_reason") == "length":
                break  # what was cut short must not run (findings/README.md)
            if given is None or not function["name"]:
                raise ValueError("the arguments of a tool call are no JSON object")
            content.append({"type": "tool_use", "id": call_id(call), "name": function["name"], "input": given})
        reason, sequence = _stop(choice.get("finish_reason"), choice.get("stop_reason"), tools=bool(calls), whole=True)
        made = _answer(read, content or [{"type": "text", "text": ""}], reason, sequence)
        return dumps({name: value for name, value in made.items() if value is not None})

    def _end(self) -> bytes | None:
        if not self.begun:
            return None
        made = [] if self.ended else self._over(None)  # some servers count no tokens of a stream
        return b"".join([*made, *self._close(), _sse("message_stop", {})])

    def _error(self, error: JsonObject) -> bytes:
        return _sse("error", {"error": {"type": "internal_error", "message": str(error.get("message"))}})

    def _over(self, usage: JsonObject | None) -> list[bytes]:
        self.ended = True
        made = self._advance(over=True)
        made += self._close()
        done = self.used and object_of(self.arguments) is not None
        reason, sequence = _stop(self.finish or "stop", self.stop, tools=self.used, whole=done)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [*made, _sse("message_delta", {"delta": delta, "usage": _usage(usage)})]

    def _events(self, read: JsonObject) -> list[bytes]:
        made: list[bytes] = []
        if not self.begun:
            self.begun = True
            made.append(_sse("message_start", {"message": _answer(read, [])}))
            if not read.get("choices"):
                return made
        elif not read.get("choices"):
            last = self.finish is not None or read.get("usage") is not None
            return self._over(read.get("usage")) if last and not self.ended else []
        choice = read["choices"][0]
        if choice.get("finish_reason") is not None:
            self.finish, self.stop = choice["finish_reason"], choice.get("stop_reason")
        delta = choice.get("delta") or {}
        if thoughts := thought(delta):
            if self.kind == "tool_use" and self.calls.busy:
                self.later.append(("thinking", "thinking", thoughts))
            else:
                made += self._say("thinking", "thinking", thoughts)
        if text := spoken(delta):
            if self.kind == "tool_use":
                self.later.append(("text", "text", text))
            else:
                made += self._say("text", "text", text)
        for call in delta.get("tool_calls") or ():
            made += self._call(call)
        return made

    def _say(self, kind: str, field: str, text: str) -> list[bytes]:
        made = []
        if self.kind != kind:
            made = self._close()
            made.append(self._open({"type": kind, field: ""}))
        made.append(self._delta({"type": f"{kind}_delta", field: text}))
        return made

    def _call(self, part: JsonObject) -> list[bytes]:
        call = self.calls.add(part)
        made = self._argued(call) if call is self.calls.open else []
        return made + self._advance()

    def _advance(self, *, over: bool = False) -> list[bytes]:
        """The calls that can begin now. ``over``: nothing comes any more."""
        made: list[bytes] = []
        while (call := self.calls.next(over=over)) is not None:
            made += self._close()
            self.used, self.calls.open = True, call
            made.append(self._open({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}))
            made += self._argued(call)
        return made

    def _argued(self, call: StreamedCall) -> list[bytes]:
        said = call.take()
        self.arguments = call.text
        return [self._delta({"type": "input_json_delta", "partial_json": said})] if said else []

    def _open(self, block: JsonObject) -> bytes:
        self.kind = block["type"]
        return _sse("content_block_start", {"content_block": block, "index": self.index})

    def _delta(self, delta: JsonObject) -> bytes:
        return _sse("content_block_delta", {"delta": delta, "index": self.index})

    def _close(self) -> list[bytes]:
        """The end of the open block, and what text had to wait for it."""
        made: list[bytes] = []
        if self.kind is not None:
            if self.kind == "thinking":
                made.append(self._delta({"type": "signature_delta", "signature": uuid.uuid4().hex}))
            made.append(_sse("content_block_stop", {"index": self.index}))
            self.index += 1
            self.kind = None
            self.calls.close()
        if self.later:
            later, self.later = self.later, []
            for kind, field, text in later:
                made += self._say(kind, field, text)
            made += self._close()
        return made


def _answer(
    read: JsonObject, content: list[JsonObject], reason: str | None = None, sequence: str | None = None
) -> JsonObject:
    return {
        "id": read.get("id") or f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": read.get("model") or "",
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": _usage(read.get("usage")),
    }


def _sse(kind: str, fields: JsonObject) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))


_COPIED = (
    ("stop_sequences", "stop"),
    ("temperature",) * 2,
    ("top_p",) * 2,
    ("top_k",) * 2,
    ("cache_salt",) * 2,
    ("chat_template_kwargs",) * 2,
)
_ENGINES = ("watermarking", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "mm_payload", "return_mm_kwargs")
_SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "text": {"text": (str,)},
    "thinking": {"thinking": (str,), "signature": (str, type(None))},
    "redacted_thinking": {"data": (str,)},
    "tool_use": {"id": (str,), "name": (str,), "input": (dict,)},
    "tool_result": {"tool_use_id": (str,), "content": (str, list, type(None)), "is_error": (bool, type(None))},
}
_MAY_LACK = ("signature", "content", "is_error")
_FIELDS = frozenset(name for shape in _SHAPES.values() for name in shape) | {"source", "tool_name", "tool"}
"""What vLLM reads of blocks; other fields it leaves out."""

_BILLING = "x-anthropic-billing-header"
"""A system block that begins so says which client asks; vLLM leaves it out, because it differs each time."""

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def to_chat(body: JsonObject) -> JsonObject:
    """The chat request. Raises ``AsAsked``."""
    for name in _ENGINES:
        if body.get(name) is not None:
            raise AsAsked(UntrainableReason.ASKED.of(name))
    limit = body.get("max_tokens")
    if not isinstance(body.get("model"), str) or isinstance(limit, bool) or not isinstance(limit, int):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    chat: JsonObject = {"model": body["model"], "messages": _messages(body)}
    chat |= {"max_tokens": limit, "max_completion_tokens": limit}
    for theirs, ours in _COPIED:
        if body.get(theirs) is not None:
            chat[ours] = body[theirs]
    if body.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    _thinking(body, chat)
    _tools(body, chat)
    return chat


def _thinking(body: JsonObject, chat: JsonObject) -> None:
    thinking = body.get("thinking")
    if thinking is not None:
        kind = thinking.get("type") if isinstance(thinking, dict) else None
        if kind == "enabled":
            budget = thinking.get("budget_tokens")
            if isinstance(budget, bool) or not isinstance(budget, int) or not 1024 <= budget < chat["max_tokens"]:
                raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
            chat["thinking_token_budget"] = budget
        elif kind not in ("adaptive", "disabled"):  # what disabled means, the engine's template says
            raise AsAsked(UntrainableReason.THINKING_TYPE.of(shown(kind)))
    config = body.get("output_config")
    if config is None:
        return
    if not isinstance(config, dict) or config.get("format") is not None:
        raise AsAsked(UntrainableReason.STRUCTURED_FIELD.of("output_config.format"))
    if (effort := config.get("effort")) is not None:
        if effort not in _EFFORTS:
            raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
        chat["reasoning_effort"] = effort


def _tools(body: JsonObject, chat: JsonObject) -> None:
    choice, tools = body.get("tool_choice"), body.get("tools")
    chat["tool_choice"] = None
    if choice is not None:
        if not isinstance(choice, dict) or choice.get("type") not in ("auto", "none"):
            raise AsAsked(UntrainableReason.FORCED_TOOL_FIELD.of("tool_choice"))
        chat["tool_choice"] = choice["type"]
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        raise AsAsked(UntrainableReason.EMPTY_TOOLS.of())
    chat["tool_choice"] = chat["tool_choice"] or "auto"
    chat["tools"] = [_tool(tool) for tool in tools]


def _tool(tool: Json) -> JsonObject:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    if not isinstance(tool.get("input_schema"), dict):
        raise AsAsked(UntrainableReason.HOSTED_TOOL.of(shown(tool.get("type"))))
    schema = tool["input_schema"]
    function = {
        "name": tool["name"],
        "description": tool.get("description"),
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {
        "type": "function",
        "function": {**function, "parameters": schema if "type" in schema else {**schema, "type": "object"}},
    }


def _messages(body: JsonObject) -> list[JsonObject]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    made: list[JsonObject] = []
    if system := _system(body.get("system")):
        made.append({"role": "system", "content": system})
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role == "system":
            if text := _inline(message.get("content")):
                made.append({"role": "system", "content": text})
        elif role in ("user", "assistant"):
            _message(role, message.get("content"), made)
        else:
            raise AsAsked(UntrainableReason.ROLE.of(shown(role)))
    return made


def _inline(content: Json) -> str:
    """A system message among the others. Where it goes depends on the model's template (``settle``)."""
    if isinstance(content, str):
        return "" if content.startswith(_BILLING) else content
    return _system(list_of(content))


def _system(system: Json) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    blocks = [_checked(block) for block in list_of(system)]
    if any(b["type"] != "text" for b in blocks):
        raise AsAsked(UntrainableReason.SYSTEM_PARTS.of())
    return "".join(b["text"] for b in blocks if not b["text"].startswith(_BILLING))


def _message(role: str, content: Json, made: list[JsonObject]) -> None:
    """Results of tools become messages of their own, before what else the user says."""
    message: JsonObject = {"role": role}
    if isinstance(content, str):
        made.append({**message, "content": content})
        return
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for block in map(_checked, list_of(content)):
        kind = block["type"]
        if kind == "text" and block["text"]:
            texts.append(block["text"])
        elif kind == "thinking":
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            function = {"name": block["name"], "arguments": json.dumps(block["input"] or {})}
            calls.append({"id": block["id"] or "", "type": "function", "function": function})
        elif kind == "tool_result":
            if role != "user":
                raise AsAsked(UntrainableReason.ASSISTANT_RESULT.of())
            made.append(
                {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block.get("content"))}
            )
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if texts:
        message["content"] = texts[0] if len(texts) == 1 else [{"type": "text", "text": t} for t in texts]
    if role == "assistant" or "content" in message:
        made.append(message)


def _result(content: Json) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    blocks = [_checked(block) for block in content]
    if any(b["type"] != "text" for b in blocks):
        raise AsAsked(UntrainableReason.RESULT_PARTS.of("tool_result.content"))
    return "\n".join(b["text"] for b in blocks)


def _checked(block: Json) -> JsonObject:
    """A block with just what is known of its type."""
    if not isinstance(block, dict) or (shape := _SHAPES.get(str(block.get("type")))) is None:
        raise AsAsked(UntrainableReason.OTHER_BLOCKS.of(shown(block.get("type") if isinstance(block, dict) else None)))
    for name, types in shape.items():
        if not isinstance(block.get(name), types) and not (name in _MAY_LACK and name not in block):
            raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    if any(name in _FIELDS and name not in shape and block[name] is not None for name in block):
        raise AsAsked(UntrainableReason.BLOCK_FIELDS.of())
    if block["type"] == "tool_use" and not block["id"]:
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    return block


class Messages(ThroughChat):
    name = "messages"
    path = "/v1/messages"

    def _to_chat(self, body: JsonObject) -> JsonObject:
        return to_chat(body)

    def _back(self, body: JsonObject) -> ReplyTranslator:
        return MessagesTranslator(body)

    def terminal(self, event: bytes) -> bool:
        return event.startswith(b"event: message_stop")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return dumps({"type": "error", "error": {"type": _anthropic_kind(status), "message": message}})

    def error_event(self, status: int, message: str, kind: str, relayed: bytes = b"") -> bytes:
        return b"event: error\ndata: " + self.error(status, message, kind) + b"\n\n"

    def _texts(self, body: JsonObject) -> tuple[JsonList, JsonList]:
        messages = items(body.get("messages"))
        if body.get("system") is not None:
            messages = [{"role": "system", "content": body["system"]}, *messages]
        return messages, items(body.get("tools"))

    def _read(self, reply: bytes, *, stream: bool) -> Read:
        if not stream:
            read = loads(reply)
            said = [Choice({"role": "assistant", "content": read["content"]}, read.get("stop_reason"))]
            return [], said if read.get("content") else [], None
        blocks: dict[int, JsonObject] = {}
        stop = error = None
        for event in stream_objects(reply):
            kind = event.get("type")
            if kind == "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            elif kind == "content_block_delta":
                _add_delta(blocks.setdefault(event["index"], {}), event["delta"])
            elif kind == "message_delta":
                stop = event["delta"].get("stop_reason")
            elif kind == "error":
                error = dumps(event.get("error"))[:4096].decode("utf-8", "replace")
        for block in blocks.values():
            if isinstance(text := block.pop("partial_json", None), str):
                try:
                    block["input"] = loads(text.encode()) if text else block.get("input", {})
                except ValueError:
                    block["input"] = text
        content = [blocks[i] for i in sorted(blocks)]
        return [], [Choice({"role": "assistant", "content": content}, stop)] if content else [], error

    def whole_events(self, reply: bytes) -> JsonList:
        _, choices, error = self._read(reply, stream=True)
        said: JsonList = []
        for choice in choices:
            for index, block in enumerate(choice.message["content"]):
                said.append({"type": "content_block_start", "index": index, "content_block": block})
            usage = counted(reply, "input_tokens", "output_tokens")
            said.append({"type": "message_delta", "delta": {"stop_reason": choice.finish_reason}, **usage})
        return said if error is None else [*said, {"type": "error", **error_of(error)}]

    def turn(self, body: JsonObject) -> Turn:
        return self._turn(items(body.get("messages")))

    def _add(self, turn: Turn, item: JsonObject) -> None:
        turn.has_reply = turn.has_reply or item.get("role") == "assistant"
        content = item.get("content")
        said = []
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                turn.tool_ids += [part[name] for name in ("id", "tool_use_id") if isinstance(part.get(name), str)]
                if part.get("type") not in ("thinking", "redacted_thinking"):
                    said.append(
                        {k: v for k, v in part.items() if k not in ("cache_control", "citations") and v is not None}
                    )
        turn.messages.append(canonical({"role": item.get("role"), "content": said or content}))


def _add_delta(block: JsonObject, delta: JsonObject) -> None:
    for name in ("text", "thinking", "partial_json", "signature"):
        if isinstance(delta.get(name), str):
            put_behind(block, name, delta[name])


def _anthropic_kind(status: int) -> str:
    kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kinds |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error", 503: "overloaded_error"}
    return kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
