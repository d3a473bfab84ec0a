"""A ``/v1/responses`` request as a chat completion: only the chat route gives token ids.

vLLM's own responses route renders the items as chat messages, samples once and cuts the tokens with the parsers that
chat completions use (0.32, ``entrypoints/openai/responses``). The same is done here. What is not known to come out
equal raises ``AsAsked``: such a call (stored, in the background, after an earlier response, with the engine's own
tools, …) goes to the engine's own route as it is, and is recorded without ids.
"""

from __future__ import annotations

from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.json_types import Json, JsonList, JsonObject

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
    "background": (False, "in the background"),
    "store": (False, "stored response"),
    "previous_response_id": (None, "after an earlier response"),
    "previous_input_messages": (None, "after an earlier response"),
    "top_logprobs": (0, "more was asked in the reply"),
    "enable_response_messages": (False, "more was asked in the reply"),
    "include_reasoning": (True, "hidden reasoning"),
    "prompt": (None, "a stored prompt"),
    "truncation": ("disabled", "truncation"),
    "structured_outputs": (None, "structured output"),
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
    if any(x not in _INCLUDED for x in _list(body.get("include") or [])):
        raise AsAsked("more was asked in the reply")
    for name in _ENGINES:
        if body.get(name) is not None:
            raise AsAsked(f"{name} was asked")
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
        chat |= {"tools": [_tool(t) for t in _list(body["tools"])], "tool_choice": choice}
    return chat


def tool_choice(body: JsonObject) -> str:
    choice = body.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise AsAsked("forced tool")
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
        raise AsAsked("structured output")
    return {"format": text.get("format"), "verbosity": text.get("verbosity")}


def reasoning_config(body: JsonObject) -> JsonObject | None:
    asked = body.get("reasoning")
    if asked is None:
        return None
    names = ("context", "effort", "generate_summary", "mode", "summary")
    if not isinstance(asked, dict) or not set(asked) <= set(names):
        raise AsAsked("unreadable request")
    return {name: asked.get(name) for name in names}


FUNCTION = ("name", "parameters", "strict", "type", "allowed_callers", "defer_loading", "description", "output_schema")


def _tool(tool: Json) -> JsonObject:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise AsAsked("a tool that is not the client's own")
    if not set(tool) <= set(FUNCTION) or tool.get("allowed_callers") is not None:
        raise AsAsked("a tool with fields of its own")
    return {
        "type": "function",
        "function": {n: tool.get(n) for n in ("name", "description", "parameters", "strict", "defer_loading")},
    }


def _list(value: Json) -> JsonList:
    if not isinstance(value, list):
        raise AsAsked("unreadable request")
    return value


def _messages(body: JsonObject) -> list[JsonObject]:
    made: list[JsonObject] = []
    instructions, asked = body.get("instructions"), body.get("input")
    if instructions is not None and not isinstance(instructions, str):
        raise AsAsked("unreadable request")
    if instructions:
        made.append({"role": "system", "content": instructions})
    if isinstance(asked, str):
        return [*made, {"role": "user", "content": asked}]
    given: list[JsonObject] = []  # items join each other, and not the instructions
    for item in _list(asked):
        if not isinstance(item, dict) or item.get("status") not in (None, "completed"):
            raise AsAsked("a reply to go on with")
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
            raise AsAsked("a message of another role")
    elif kind == "function_call":
        _call(item, made)
    elif kind == "function_call_output":
        if not isinstance(item.get("call_id"), str) or not isinstance(item.get("output"), str):
            raise AsAsked("a tool's result with more than text")
        made.append({"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]})
    elif kind == "reasoning":
        _join(made, "reasoning", _thought(item))
    else:
        raise AsAsked("items of other types")


def _join(made: list[JsonObject], name: str, text: str) -> None:
    """What the assistant says goes to its last message while that has none of it."""
    if made and made[-1]["role"] == "assistant" and made[-1].get(name) is None:
        made[-1][name] = text
    else:
        made.append({"role": "assistant", name: text})


def _call(item: JsonObject, made: list[JsonObject]) -> None:
    if (
        not all(isinstance(item.get(n), str) for n in ("call_id", "name", "arguments"))
        or item.get("namespace") is not None
    ):
        raise AsAsked("items of other types")
    call = {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": item["name"], "arguments": item["arguments"]},
    }
    if made and made[-1]["role"] == "assistant":
        made[-1].setdefault("tool_calls", []).append(call)
    else:
        made.append({"role": "assistant", "tool_calls": [call]})


def _said(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = _list(content)
    if (
        len(parts) != 1
        or not isinstance(parts[0], dict)
        or parts[0].get("type") != "output_text"
        or not isinstance(parts[0].get("text"), str)
    ):
        raise AsAsked("a message with more than text")
    return str(parts[0]["text"])


def _content(content: Json) -> str | list[JsonObject]:
    if isinstance(content, str):
        return content
    parts = _list(content)
    if not parts or not all(
        isinstance(p, dict) and p.get("type") == "input_text" and isinstance(p.get("text"), str) for p in parts
    ):
        raise AsAsked("images or other parts")
    return [{"type": "text", "text": p["text"]} for p in parts]


def _thought(item: JsonObject) -> str:
    content, summary = item.get("content"), item.get("summary")
    if item.get("encrypted_content") or not isinstance(summary, list) or not isinstance(content, list | None):
        raise AsAsked("encrypted reasoning")
    first = (content or summary or [{"text": ""}])[0]
    if not isinstance(first, dict) or not isinstance(first.get("text"), str):
        raise AsAsked("unreadable request")
    return str(first["text"])
