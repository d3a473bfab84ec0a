"""A ``/v1/messages`` request as a chat completion: only the chat route gives token ids.

vLLM's own messages route makes a chat request out of the client's, runs it as one, and makes the message out of the
chat reply (0.32, ``entrypoints/anthropic/serving.py``). The same is done here. What is not known to come out equal
raises ``AsAsked``: such a call goes to the engine's own route as it is, and is recorded without ids.
"""

from __future__ import annotations

import json

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.json_types import Json, JsonList, JsonObject

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
            raise AsAsked(f"{name} was asked")
    limit = body.get("max_tokens")
    if not isinstance(body.get("model"), str) or isinstance(limit, bool) or not isinstance(limit, int):
        raise AsAsked("unreadable request")
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
    if thinking is not None and (not isinstance(thinking, dict) or thinking.get("type") != "adaptive"):
        raise AsAsked(
            "a thinking budget was asked"
        )  # it forces tokens, and what "disabled" means the engine finds out by probing
    config = body.get("output_config")
    if config is None:
        return
    if not isinstance(config, dict) or config.get("format") is not None:
        raise AsAsked("structured output")
    if (effort := config.get("effort")) is not None:
        if effort not in _EFFORTS:
            raise AsAsked("unreadable request")
        chat["reasoning_effort"] = effort


def _tools(body: JsonObject, chat: JsonObject) -> None:
    choice, tools = body.get("tool_choice"), body.get("tools")
    chat["tool_choice"] = None
    if choice is not None:
        if not isinstance(choice, dict) or choice.get("type") not in ("auto", "none"):
            raise AsAsked("forced tool")
        chat["tool_choice"] = choice["type"]
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        raise AsAsked("an empty list of tools")
    chat["tool_choice"] = chat["tool_choice"] or "auto"
    chat["tools"] = [_tool(tool) for tool in tools]


def _tool(tool: Json) -> JsonObject:
    if (
        not isinstance(tool, dict)
        or not isinstance(tool.get("name"), str)
        or not isinstance(tool.get("input_schema"), dict)
    ):
        raise AsAsked("a tool that is not the client's own")
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
        raise AsAsked("unreadable request")
    made: list[JsonObject] = []
    if system := _system(body.get("system")):
        made.append({"role": "system", "content": system})
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise AsAsked("a message of another role")  # where those of the system go depends on the model's template
        _message(message["role"], message.get("content"), made)
    return made


def _system(system: Json) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    blocks = [_checked(block) for block in _list(system)]
    if any(b["type"] != "text" for b in blocks):
        raise AsAsked("a system prompt with more than text")
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
    for block in map(_checked, _list(content)):
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
                raise AsAsked("a tool's result that the assistant says")
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
        raise AsAsked("a tool's result with more than text")
    return "\n".join(b["text"] for b in blocks)


def _list(value: Json) -> JsonList:
    if not isinstance(value, list):
        raise AsAsked("unreadable request")
    return value


def _checked(block: Json) -> JsonObject:
    """A block with just what is known of its type."""
    if not isinstance(block, dict) or (shape := _SHAPES.get(str(block.get("type")))) is None:
        raise AsAsked("images or other blocks")
    for name, types in shape.items():
        if not isinstance(block.get(name), types) and not (name in _MAY_LACK and name not in block):
            raise AsAsked("unreadable request")
    if any(name in _FIELDS and name not in shape and block[name] is not None for name in block):
        raise AsAsked("a block with fields of another")
    if block["type"] == "tool_use" and not block["id"]:
        raise AsAsked("unreadable request")
    return block
