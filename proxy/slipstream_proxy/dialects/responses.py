"""OpenAI's ``POST /v1/responses``: asked as a chat completion, since only that route gives token ids.

vLLM's own responses route renders the items as chat messages, samples once and cuts the tokens with the parsers that
chat completions use (0.32, ``entrypoints/openai/responses``). The same is done here. What is not known to come out
equal raises ``AsAsked``: such a call (stored, in the background, after an earlier response, with the engine's own
tools, …) goes to the engine's own route as it is, and is recorded without ids.

A request by an earlier response's id continues its episode; the record lacks its items.
"""

from __future__ import annotations

import json
import re
import time
import uuid

from slipstream_proxy.dialects.base import (
    AsAsked,
    Read,
    ReplyTranslator,
    Turn,
    dumps,
    list_of,
    loads,
    openai_error,
    shown,
    stream_events,
    stream_objects,
)
from slipstream_proxy.dialects.chat import canonical
from slipstream_proxy.dialects.purpose import orders, quotes
from slipstream_proxy.dialects.through_chat import ChatEvents, ThroughChat, items, spoken, thought
from slipstream_proxy.dialects.token_arrays import prompt_length
from slipstream_proxy.dialects.tool_calls import CallLine, StreamedCall, arguments_of, as_functions, call_id
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.json_types import Json, JsonList, JsonObject
from slipstream_proxy.log.records import Choice
from slipstream_proxy.usage import count_of, usage_in

_COPIED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "priority",
    "cache_salt",
    "chat_template_kwargs",
    "parallel_tool_calls",
    "request_id",
    "session_id",
)
_UNLESS: dict[str, tuple[Json, str]] = {
    "background": (False, UntrainableReason.BACKGROUND.of()),
    "store": (False, UntrainableReason.STORED.of()),
    "previous_response_id": (None, UntrainableReason.EARLIER_RESPONSE.of()),
    "previous_input_messages": (None, UntrainableReason.EARLIER_RESPONSE.of()),
    "top_logprobs": (0, UntrainableReason.INCLUDED.of()),
    "enable_response_messages": (False, UntrainableReason.INCLUDED.of()),
    "include_reasoning": (True, UntrainableReason.HIDDEN_REASONING.of()),
    "prompt": (None, UntrainableReason.STORED_PROMPT.of()),
    "truncation": ("disabled", UntrainableReason.TRUNCATION.of()),
    "structured_outputs": (None, UntrainableReason.STRUCTURED_FIELD.of("structured_outputs")),
}
"""Fields that only these values may have, else the call goes as it was asked, for this reason."""

_INCLUDED = (
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "file_search_call.results",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
)
"""What vLLM takes in ``include`` without doing anything."""

_ENGINES = (
    "watermarking",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "mm_payload",
    "return_mm_kwargs",
    "vllm_xargs",
    "kv_transfer_params",
    "ec_transfer_params",
)


def to_chat(body: JsonObject) -> JsonObject:
    """The chat request. Raises ``AsAsked``."""
    for name, (value, reason) in _UNLESS.items():
        if body.get(name) is not None and body[name] != value:
            raise AsAsked(reason)
    if any(x not in _INCLUDED for x in list_of(body.get("include") or [])):
        raise AsAsked(UntrainableReason.INCLUDED.of())
    for name in _ENGINES:
        if body.get(name) is not None:
            raise AsAsked(UntrainableReason.ASKED.of(name))
    chat: JsonObject = {"messages": _messages(body)}
    if "model" in body:
        chat["model"] = body["model"]
    for name in _COPIED:
        if body.get(name) is not None:
            chat[name] = body[name]
    if (limit := body.get("max_output_tokens")) is not None:
        chat |= {"max_tokens": limit, "max_completion_tokens": limit}
    if body.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    text_config(body)
    if (effort := (reasoning_config(body) or {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    choice = tool_choice(body)
    if body.get("tools"):
        chat |= {"tools": _tools(body), "tool_choice": choice}
    return chat


def tool_choice(body: JsonObject) -> str:
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise AsAsked(UntrainableReason.FORCED_TOOL_FIELD.of("tool_choice"))
    return "none" if not body.get("tools") else str(choice)


def text_config(body: JsonObject) -> JsonObject | None:
    """``text`` as the engine says it back."""
    text = body.get("text")
    if text is None:
        return None
    if (
        not isinstance(text, dict)
        or text.get("format") not in (None, {"type": "text"})
        or not set(text) <= {"format", "verbosity"}
    ):
        raise AsAsked(UntrainableReason.STRUCTURED_FIELD.of("text.format"))
    return {"format": text.get("format"), "verbosity": text.get("verbosity")}


def reasoning_config(body: JsonObject) -> JsonObject | None:
    asked = body.get("reasoning")
    if asked is None:
        return None
    names = ("context", "effort", "generate_summary", "mode", "summary")
    if not isinstance(asked, dict) or not set(asked) <= set(names):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    return {name: asked.get(name) for name in names}


RESPONSE_FIELDS: dict[str, list[str]] = {
    "function": [
        *("name", "parameters", "strict", "type", "allowed_callers", "async", "defer_loading"),
        *("description", "output_schema"),
    ],
    "custom": ["name", "type", "allowed_callers", "async", "defer_loading", "description", "format"],
    "namespace": ["description", "name", "tools", "type"],
    "namespaced": [
        *("name", "type", "allowed_callers", "async", "defer_loading", "description", "output_schema"),
        *("parameters", "strict"),
    ],
    "web_search": ["type", "external_web_access", "filters", "search_context_size", "user_location"],
    "image_generation": [
        *("type", "action", "background", "complexity", "frame_count", "frame_duration_ms", "input_fidelity"),
        *("input_image_mask", "model", "moderation", "output_compression", "output_format", "partial_images"),
        *("quality", "size", "svg"),
    ],
    "apply_patch": ["type", "allowed_callers"],
    "function_call": ["arguments", "call_id", "name", "type", "id", "async", "caller", "namespace", "status"],
    "custom_tool_call": ["call_id", "input", "name", "type", "id", "async", "caller", "namespace"],
    "arguments_done": ["arguments", "item_id", "output_index", "sequence_number", "type"],
}
"""What the engine says of tools and calls, in its order, where it does not say itself: vLLM's models are those of the
openai package beside it, and these are 3.57's.
"""
_HOSTED = {
    "web_search": "web_search",
    "web_search_2025_08_26": "web_search",
    "image_generation": "image_generation",
    "local_shell": "local_shell",
    "computer": "computer",
    "apply_patch": "apply_patch",
    "programmatic_tool_calling": "programmatic_tool_calling",
}
"""Hosted tools that the engine takes, says back and never shows to the model → the kind whose fields they have."""
_ASKED = ("name", "type", "defer_loading", "description")
_FUNCTION = (*_ASKED, "parameters", "strict", "allowed_callers", "output_schema")
_CUSTOM = (*_ASKED, "allowed_callers", "format")
_INPUT: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""A custom tool is shown to the model as a function of one text."""


def flat_name(namespace: Json, name: Json) -> str:
    """What the model calls a function of a namespace."""
    return f"{namespace}__{name}"


def _tools(body: JsonObject) -> list[JsonObject]:
    """The tools that the model is shown. Raises ``AsAsked`` where the reply could not say them back as the engine."""
    made: list[JsonObject] = []
    for tool in list_of(body.get("tools")):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == "function":
            made.append(_function(tool, _FUNCTION, tool.get("name")))
        elif kind == "namespace":
            if set(tool) != set(RESPONSE_FIELDS["namespace"]) or not all(
                isinstance(tool[n], str) for n in ("name", "description")
            ):
                raise AsAsked(UntrainableReason.TOOL_FIELDS.of("namespace"))
            for inner in list_of(tool["tools"]):
                if not isinstance(inner, dict) or inner.get("type") != "function":
                    raise AsAsked(UntrainableReason.NAMESPACE_TOOL.of())
                made.append(_function(inner, _FUNCTION, flat_name(tool["name"], inner.get("name"))))
        elif kind == "custom":
            if tool.get("format") not in (None, {"type": "text"}):
                raise AsAsked(UntrainableReason.GRAMMAR_TOOL.of(shown(tool.get("name"))))
            made.append(_function({**tool, "parameters": _INPUT}, (*_CUSTOM, "parameters"), tool.get("name")))
        elif kind not in _HOSTED or any(isinstance(value, dict | list) for value in tool.values()):
            raise AsAsked(UntrainableReason.HOSTED_TOOL.of(shown(kind)))
    if not made:
        raise AsAsked(UntrainableReason.NO_TOOL.of())
    return made


def _function(tool: JsonObject, fields: tuple[str, ...], name: Json) -> JsonObject:
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("parameters"), dict | None):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    if not set(tool) <= set(fields) or tool.get("allowed_callers") is not None:
        raise AsAsked(UntrainableReason.TOOL_FIELDS.of(shown(name)))
    asked = {n: tool.get(n) for n in ("description", "parameters", "strict", "defer_loading")}
    return {"type": "function", "function": {"name": name, **asked}}


def said_back(tool: JsonObject, fields: dict[str, list[str]]) -> JsonObject:
    """A tool as the engine says it back. ``fields``: the engine's, as ``RESPONSE_FIELDS``."""
    kind: str = tool["type"]
    if kind == "namespace":
        inner = [{n: t.get(n) for n in fields["namespaced"]} for t in tool["tools"]]
        return {n: inner if n == "tools" else tool[n] for n in fields[kind]}
    known = fields.get(_HOSTED.get(kind, kind), ["type"])
    return {n: tool.get(n) for n in known} | {n: v for n, v in tool.items() if n not in known}


def _messages(body: JsonObject) -> list[JsonObject]:
    made: list[JsonObject] = []
    instructions, asked = body.get("instructions"), body.get("input")
    if instructions is not None and not isinstance(instructions, str):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    if instructions:
        made.append({"role": "system", "content": instructions})
    if isinstance(asked, str):
        return [*made, {"role": "user", "content": asked}]
    given: list[JsonObject] = []  # items join each other, and not the instructions
    for item in list_of(asked):
        if not isinstance(item, dict) or item.get("status") not in (None, "completed"):
            raise AsAsked(UntrainableReason.UNFINISHED.of())
        _item(item, given)
    return made + given


def _item(item: JsonObject, made: list[JsonObject]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role == "assistant":
            _join(made, "content", _said(item.get("content")))
        elif role in ("user", "system", "developer"):
            made.append({"role": role, "content": _content(item.get("content"))})
        else:
            raise AsAsked(UntrainableReason.ROLE.of(shown(role)))
    elif kind in ("function_call", "custom_tool_call"):
        _call(item, made)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        if not isinstance(item.get("call_id"), str):
            raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
        made.append({"role": "tool", "content": _content(item.get("output")), "tool_call_id": item["call_id"]})
    elif kind == "reasoning":
        _join(made, "reasoning", _thought(item))
    else:
        raise AsAsked(UntrainableReason.ITEM_TYPE.of(shown(kind)))


def _join(made: list[JsonObject], name: str, text: str) -> None:
    """What the assistant says goes to its last message while that has none of it."""
    if made and made[-1]["role"] == "assistant" and made[-1].get(name) is None:
        made[-1][name] = text
    else:
        made.append({"role": "assistant", name: text})


def _call(item: JsonObject, made: list[JsonObject]) -> None:
    custom = item["type"] == "custom_tool_call"
    said, namespace = item.get("input" if custom else "arguments"), item.get("namespace")
    if not all(isinstance(text, str) for text in (item.get("call_id"), item.get("name"), said)):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    name = flat_name(namespace, item["name"]) if namespace and not custom else item["name"]
    arguments = json.dumps({"input": said or ""}, ensure_ascii=False) if custom else said
    call = {"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": arguments}}
    if made and made[-1]["role"] == "assistant":
        made[-1].setdefault("tool_calls", []).append(call)
    else:
        made.append({"role": "assistant", "tool_calls": [call]})


def _said(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = list_of(content)
    if (
        len(parts) != 1
        or not isinstance(parts[0], dict)
        or parts[0].get("type") != "output_text"
        or not isinstance(parts[0].get("text"), str)
    ):
        raise AsAsked(UntrainableReason.MESSAGE_PARTS.of())
    return str(parts[0]["text"])


def _content(content: Json) -> str | list[JsonObject]:
    if isinstance(content, str):
        return content
    parts = list_of(content)
    if not parts or not all(
        isinstance(p, dict) and p.get("type") == "input_text" and isinstance(p.get("text"), str) for p in parts
    ):
        kinds = [p.get("type") if isinstance(p, dict) else None for p in parts]
        raise AsAsked(UntrainableReason.OTHER_PARTS.of(shown(next((k for k in kinds if k != "input_text"), None))))
    return [{"type": "text", "text": p["text"]} for p in parts]


def _thought(item: JsonObject) -> str:
    content, summary = item.get("content"), item.get("summary")
    if item.get("encrypted_content") or not isinstance(summary, list) or not isinstance(content, list | None):
        raise AsAsked(UntrainableReason.ENCRYPTED.of())
    first = (content or summary or [{"text": ""}])[0]
    if not isinstance(first, dict) or not isinstance(first.get("text"), str):
        raise AsAsked(UntrainableReason.UNREADABLE_REQUEST.of())
    return str(first["text"])


_NUMBER = re.compile(rb'[,{]\s*"sequence_number":\s*([0-9]{1,15})')
_END = re.compile(r"</s>|<eos>|<end_of_turn>|<[|\uff5c](?:im_end|eot_id|eom_id|end|return|call|endof|end\u2581of).*")
"""Tokens that end a reply."""
_ECHOED = ("instructions", "metadata", "max_tool_calls", "user")


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:16]}"


def _message(text: str, uid: str, status: str = "completed") -> JsonObject:
    content: JsonList = [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}] if text else []
    return {"id": uid, "content": content, "role": "assistant", "status": status, "type": "message", "phase": None}


def _reasoned(text: str | None, uid: str, status: str | None) -> JsonObject:
    content = None if text is None else [{"text": text, "type": "reasoning_text"}]
    return {
        "id": uid,
        "summary": [],
        "type": "reasoning",
        "content": content,
        "encrypted_content": None,
        "status": status,
    }


class _Called:
    """How the client knows the tool that the model called by ``name``."""

    __slots__ = ("custom", "fields", "name", "namespace")

    def __init__(
        self,
        name: str,
        namespaces: dict[str, tuple[str, str]],
        custom: frozenset[str],
        fields: dict[str, list[str]],
    ) -> None:
        self.fields = fields
        self.custom = name in custom
        space = namespaces.get(name)
        self.namespace = space[0] if space is not None else None
        self.name = space[1] if space is not None else name

    def item(self, arguments: str, call_id: str, uid: str, status: str = "completed") -> JsonObject:
        """``arguments``: of a custom tool its input."""
        kind = "custom_tool_call" if self.custom else "function_call"
        said: JsonObject = {"call_id": call_id, "name": self.name, "type": kind, "id": uid}
        if self.custom:
            said["input"] = arguments
        else:
            said |= {"arguments": arguments, "namespace": self.namespace, "status": status}
        return {name: said.get(name) for name in self.fields[kind]}


def _payload(read: Json) -> str | None:
    value = read.get("input") if isinstance(read, dict) else None
    return value if isinstance(value, str) else None


def decoded_input(arguments: str) -> str:
    """The text that a custom tool was called with. What is no JSON is the text itself."""
    try:
        payload = _payload(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments
    return arguments if payload is None else payload


_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)\Z")
_LONG = 2**16
"""Characters beyond which an input comes at its end, and not as it is said: each piece costs a look at all of it."""


def begun_input(arguments: str) -> str:
    """The beginning of that text in arguments that are not whole."""
    if len(arguments) > _LONG:
        return ""
    arguments = arguments.strip()  # vLLM's reader does so, too
    cut = _ESCAPE.search(arguments)
    open_text = arguments[: cut.start(1)] if cut is not None else arguments
    for text in (arguments, f'{open_text}"}}', f"{arguments.removesuffix(',')}}}"):
        try:
            payload = _payload(json.loads(text)) or ""
        except (ValueError, RecursionError):
            continue
        return payload[:-1] if payload and 0xD800 <= ord(payload[-1]) <= 0xDBFF else payload  # half a character
    return ""


class ResponsesTranslator(ChatEvents):
    """A chat reply as a response: ``whole`` at once, or event by event.

    ``context``: how many tokens the engine's context has. It says what is left of it as ``max_output_tokens`` where
    the client gave no limit.
    """

    def __init__(self, asked: JsonObject) -> None:
        self.asked = asked
        self.context: int | None = None
        self.context_needed = asked.get("max_output_tokens") is None
        self.id = asked.get("request_id") or _id("resp")
        self.at = int(time.time())
        self.model = ""
        self.prompt = 0
        self.number = 0
        self.kind: str | None = None
        self.begun = False
        self.uid = self.text = ""
        self.calls = CallLine()
        self.later: list[JsonObject] = []
        """What came while more of a call was to come."""
        self.last: JsonObject = {}
        """Of the choice: how it ended."""
        tools = asked.get("tools") or ()
        self.custom = frozenset([t["name"] for t in tools if t["type"] == "custom"])
        self.namespaces: dict[str, tuple[str, str]] = {
            flat_name(t["name"], f["name"]): (t["name"], f["name"])
            for t in tools
            if t["type"] == "namespace"
            for f in t["tools"]
        }
        self.fields = RESPONSE_FIELDS
        self.fields_needed = bool(tools)
        self.called = self._tool("")
        self.input = ""
        """What was said of a custom tool's input."""
        self.output: list[JsonObject] = []
        self.finish: str | None = None
        self.usage: JsonObject = {}

    def say_back(self, fields: dict[str, list[str]]) -> None:
        self.fields, self.fields_needed = {**RESPONSE_FIELDS, **fields}, False

    def _tool(self, name: str) -> _Called:
        return _Called(name, self.namespaces, self.custom, self.fields)

    def whole(self, reply: bytes) -> bytes:
        read = loads(reply)
        choice = as_functions(read["choices"][0], "message")
        message = choice["message"]
        self._begin(read)
        self.usage, self.finish, self.last = usage_in(read, {}), choice.get("finish_reason"), choice
        self.prompt = count_of(self.usage, "prompt_tokens")
        if thoughts := thought(message):
            self.output.append(_reasoned(thoughts, _id("rs"), None))
        if text := spoken(message):
            self.output.append(_message(text, _id("msg")))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            if not function["name"]:
                raise ValueError("a tool call without a name")
            called = self._tool(function["name"])
            said = arguments_of(function)
            said = decoded_input(said) if called.custom else said
            self.output.append(called.item(said, call_id(call), _id("ctc" if called.custom else "fc")))
        return dumps(self._response(self._status()))

    def _begin(self, read: JsonObject) -> None:
        self.model = read.get("model") or self.asked.get("model") or ""
        self.begun = True

    def _status(self) -> str:
        return "incomplete" if self.finish == "length" or self._is_cut() else "completed"

    def _is_cut(self) -> bool:
        """A chat completion that called a tool does not say that its limit ended it. vLLM's own route does: the limit
        is reached, and no token ends the reply.
        """
        limit = self._limit()
        if self.finish != "tool_calls" or limit is None or self.last.get("stop_reason") is not None:
            return False
        tokens = (self.last.get("logprobs") or {}).get("content") or [{}]
        return count_of(self.usage, "completion_tokens") >= limit > 0 and not _END.fullmatch(
            tokens[-1].get("token") or ""
        )

    def _limit(self) -> int | None:
        limit: int | None = self.asked.get("max_output_tokens")
        return self.context - self.prompt if limit is None and self.context is not None else limit

    def _response(self, status: str) -> JsonObject:
        asked = self.asked
        temperature = float(asked["temperature"]) if asked.get("temperature") is not None else 1.0
        greedy = temperature == 0  # the engine then says how it samples; between that and 0.01 it goes up to 0.01
        limit = self._limit()
        given = {name: asked.get(name) for name in _ECHOED}
        return {
            "id": self.id,
            "created_at": self.at,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": given["instructions"],
            "metadata": given["metadata"],
            "model": self.model,
            "object": "response",
            "output": self.output if status != "in_progress" else [],
            "parallel_tool_calls": asked["parallel_tool_calls"]
            if asked.get("parallel_tool_calls") is not None
            else True,
            "temperature": temperature if greedy else max(temperature, 0.01),
            "tool_choice": tool_choice(asked),
            "tools": [said_back(t, self.fields) for t in asked.get("tools") or ()],
            "top_p": 1.0 if greedy or asked.get("top_p") is None else float(asked["top_p"]),
            "background": False,
            "max_output_tokens": limit,
            "max_tool_calls": given["max_tool_calls"],
            "previous_response_id": None,
            "prompt": None,
            "reasoning": reasoning_config(asked),
            "service_tier": asked.get("service_tier") or "auto",
            "status": status,
            "text": text_config(asked),
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": self._usage() if status != "in_progress" else None,
            "user": given["user"],
            "presence_penalty": float(asked.get("presence_penalty") or 0.0),
            "frequency_penalty": float(asked.get("frequency_penalty") or 0.0),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _usage(self) -> JsonObject:
        usage = self.usage
        details = usage.get("prompt_tokens_details")
        return {
            "input_tokens": count_of(usage, "prompt_tokens"),
            "input_tokens_details": {
                "cached_tokens": count_of(details, "cached_tokens"),
                "cache_write_tokens": count_of(details, "created_cache_tokens"),
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": count_of(usage, "completion_tokens"),
            "output_tokens_details": {
                "reasoning_tokens": count_of(usage.get("completion_tokens_details"), "reasoning_tokens"),
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": count_of(usage, "total_tokens"),
        }

    def _end(self) -> bytes | None:
        if not self.begun:
            return None
        made = self._advance(over=True)
        made += self._close()
        made += self._say_later()
        made += self._close()
        return b"".join((*made, self._sse("response.completed", {"response": self._response(self._status())})))

    def _error(self, error: JsonObject) -> bytes:
        return self._sse("error", {"code": error.get("type"), "message": error.get("message"), "param": None})

    def _events(self, read: JsonObject) -> list[bytes]:
        made: list[bytes] = []
        if not self.begun:
            self._begin(read)
            self.prompt = len(read.get("prompt_token_ids") or ()) or prompt_length(read)
            begun = self._response("in_progress")
            made = [self._sse(f"response.{kind}", {"response": begun}) for kind in ("created", "in_progress")]
        self.usage = usage_in(read, self.usage)
        for choice in read.get("choices") or ():
            self.finish = choice.get("finish_reason") or self.finish
            if choice.get("finish_reason") or choice.get("logprobs"):
                self.last = {**self.last, **{n: v for n, v in choice.items() if v is not None}}
            for part in _split(choice.get("delta") or {}):
                made += self._part(part)
        return made

    def _part(self, delta: JsonObject) -> list[bytes]:
        made: list[bytes] = []
        calls = delta.get("tool_calls")
        if calls:
            told = list({id(call): call for call in map(self.calls.add, calls)}.values())
            for call in told:
                if call is self.calls.open:
                    made += self._argued(call)
            made += self._advance()
            if self.later and not self.calls.busy:
                made += self._say_later()
        elif self.calls.busy:
            self.later.append(delta)
        elif delta.get("reasoning") is not None:
            made = self._turn("reasoning")
            self.text += delta["reasoning"]
            made.append(
                self._sse(
                    "response.reasoning_text.delta", {"content_index": 0, "delta": delta["reasoning"], **self._where()}
                )
            )
        elif delta.get("content"):
            made = self._turn("content")
            self.text += delta["content"]
            made.append(
                self._sse(
                    "response.output_text.delta",
                    {
                        "content_index": 0,
                        "delta": delta["content"],
                        "item_id": self.uid,
                        "logprobs": [],
                        "output_index": len(self.output),
                    },
                )
            )
        return made

    def _say_later(self) -> list[bytes]:
        """What came while more of a call was to come."""
        later, self.later = self.later, []
        return [event for delta in later for event in self._part(delta)]

    def _advance(self, *, over: bool = False) -> list[bytes]:
        """The calls that can begin now. ``over``: nothing comes any more."""
        made: list[bytes] = []
        while (call := self.calls.next(over=over)) is not None:
            made += self._close()
            self.kind, self.text, self.input, self.calls.open = "tool_call", "", "", call
            self.called = self._tool(call.name)
            self.uid = _id("ctc" if self.called.custom else "fc")
            made.append(self._item("added", self.called.item("", call.id, self.uid, "in_progress")))
            made += self._argued(call)
        return made

    def _argued(self, call: StreamedCall) -> list[bytes]:
        text = call.take()
        self.text = call.text
        if not text:
            return []
        if self.called.custom:
            return self._put_in(begun_input(self.text))
        return [self._sse("response.function_call_arguments.delta", {"delta": text, **self._where()})]

    def _put_in(self, payload: str) -> list[bytes]:
        """The custom tool's input goes on. What cannot be an end of what was said is said again, whole."""
        said = self.input
        if payload == said:
            return []
        self.input = payload
        delta = payload.removeprefix(said)
        return [self._sse("response.custom_tool_call_input.delta", {"delta": delta, **self._where()})]

    def _where(self) -> JsonObject:
        return {"item_id": self.uid, "output_index": len(self.output)}

    def _turn(self, kind: str) -> list[bytes]:
        """From one item to the next, where that is another."""
        if self.kind == kind:
            return []
        made = self._close()
        self.kind, self.text = kind, ""
        self.uid = _id("msg" if kind == "content" else "rs")
        if kind == "content":
            item, part = (
                _message("", self.uid, "in_progress"),
                {"annotations": [], "text": "", "type": "output_text", "logprobs": []},
            )
        else:
            item, part = _reasoned(None, self.uid, "in_progress"), {"text": "", "type": "reasoning_text"}
        return [*made, self._item("added", item), self._piece("added", part)]

    def _close(self) -> list[bytes]:
        if self.kind is None:
            return []
        made: list[bytes]
        if self.kind == "tool_call":
            assert self.calls.open is not None
            said, where = self.text if self.text.strip() else "{}", self._where()
            text = decoded_input(said) if self.called.custom else said
            item = self.called.item(text, self.calls.open.id, self.uid)
            self.calls.close()
            done: JsonObject
            if self.called.custom:
                made, done = self._put_in(text), {"input": text, **where}
                made.append(self._sse("response.custom_tool_call_input.done", done))
            else:
                done, name = {"arguments": text, "item_id": self.uid}, {"name": self.called.name}
                known = "name" in self.fields["arguments_done"]  # what vLLM says beside a model's fields comes last
                done |= {**(name if known else {}), "output_index": len(self.output)}
                empty = (
                    []
                    if self.text.strip()
                    else [self._sse("response.function_call_arguments.delta", {"delta": text, **where})]
                )
                made = [*empty, self._sse("response.function_call_arguments.done", done, last={} if known else name)]
        elif self.kind == "reasoning":
            item = _reasoned(self.text, self.uid, "completed")
            done = {"content_index": 0, **self._where()}
            made = [self._sse("response.reasoning_text.done", done, {"text": self.text})]
            made.append(self._piece("done", {"text": self.text, "type": "reasoning_text"}))
        else:
            item = _message(self.text, self.uid)
            done = {"content_index": 0, "item_id": self.uid, "logprobs": [], "output_index": len(self.output)}
            made = [self._sse("response.output_text.done", done, {"text": self.text})]
            made.append(
                self._piece("done", {"annotations": [], "text": self.text, "type": "output_text", "logprobs": None})
            )
        made.append(self._item("done", item))
        self.output.append(item)
        self.kind = None
        return made

    def _item(self, what: str, item: JsonObject) -> bytes:
        return self._sse(f"response.output_item.{what}", {"item": item, "output_index": len(self.output)})

    def _piece(self, what: str, part: JsonObject) -> bytes:
        return self._sse(f"response.content_part.{what}", {"content_index": 0, **self._where(), "part": part})

    def _sse(
        self, kind: str, fields: JsonObject, after: JsonObject | None = None, last: JsonObject | None = None
    ) -> bytes:
        body = {**fields, "sequence_number": self.number, **(after or {}), "type": kind, **(last or {})}
        self.number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps(body))


def _split(delta: JsonObject) -> list[JsonObject]:
    """One delta for each thing it says: reasoning, content, then the calls."""
    said = {"reasoning": thought(delta), "content": spoken(delta)}
    made: list[JsonObject] = [{name: text} for name, text in said.items() if text is not None]
    calls = [call for call in delta.get("tool_calls") or () if call.get("function") is not None]
    return [*made, {"tool_calls": calls}] if calls else made


class Responses(ThroughChat):
    name = "responses"
    path = "/v1/responses"

    def _to_chat(self, body: JsonObject) -> JsonObject:
        return to_chat(body)

    def _back(self, body: JsonObject) -> ReplyTranslator:
        return ResponsesTranslator(body)

    def terminal(self, event: bytes) -> bool:
        return event.startswith(
            (b"event: response.completed", b"event: response.failed", b"event: response.incomplete")
        )

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return openai_error(status, message, kind, param)

    def error_event(self, status: int, message: str, kind: str, relayed: bytes = b"") -> bytes:
        numbers = _NUMBER.findall(relayed)
        number = int(numbers[-1]) + 1 if numbers else 0
        body = {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": number}
        return b"event: error\ndata: " + dumps(body) + b"\n\n"

    def _texts(self, body: JsonObject) -> tuple[JsonList, JsonList]:
        messages = items(body.get("input"))
        if isinstance(body.get("instructions"), str):
            messages = [{"role": "system", "content": body["instructions"]}, *messages]
        return messages, items(body.get("tools"))

    def _read(self, reply: bytes, *, stream: bool) -> Read:
        response, error = _response(reply, stream=stream)
        output = response.get("output")
        return [], [Choice(output, response.get("status"))] if output else [], error

    def whole_events(self, reply: bytes) -> JsonList:
        response, error = _response(reply, stream=True)
        said: JsonList = [{"type": "response.completed", "response": response}] if response else []
        return said if error is None else [*said, {"type": "error", "message": error}]

    def turn(self, body: JsonObject) -> Turn:
        before = body.get("previous_response_id")
        turn = self._turn(items(body.get("input")), has_reply=before is not None)
        if isinstance(before, str):
            turn.tool_ids.append(before)
        return turn

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        try:
            response = _response(reply, stream=stream)[0]
        except Exception:
            response = {}
        turn = self._turn(items(response.get("output")), has_reply=True)
        turn.quotes = quotes(response.get("output"))
        turn.orders = orders(response.get("output"))
        if isinstance(response.get("id"), str):
            turn.tool_ids.append(response["id"])
        return turn

    def _add(self, turn: Turn, item: JsonObject) -> None:
        if isinstance(item.get("call_id"), str):
            turn.tool_ids.append(item["call_id"])
        if item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant":
            turn.has_reply = True
        if item.get("type") != "reasoning":
            named = {
                "role": item.get("role") or item.get("type"),
                "content": item.get("content") or item.get("output") or item.get("arguments"),
            }
            turn.messages.append(canonical({**named, "tool_call_id": item.get("call_id")}))


def _response(reply: bytes, *, stream: bool) -> tuple[JsonObject, str | None]:
    """The response as it stood last, and a stream's error."""
    found: JsonObject = {}
    error = None
    if not stream:
        read = loads(reply)
        return read if isinstance(read, dict) else found, None
    for event in stream_events(reply):
        if event.find(b'"response"') < 0 and event.find(b'"error"') < 0 and event.find(b"\\u") < 0:
            continue  # no such member, and none with escaped letters in its name: most events
        for read in stream_objects(event):
            if read.get("type") == "error":
                error = str(read.get("message"))[:4096]
            if isinstance(read.get("response"), dict):
                found = read["response"]
    return found, error
