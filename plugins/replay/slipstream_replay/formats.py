"""Which recorded calls a replay can ask again, at which route, and what they say as chat messages."""

from __future__ import annotations

import json
from typing import Any

from slipstream.contract import CallRecord

JsonObject = dict[str, Any]
CHAT_PATH, RESPONSES_PATH = "chat/completions", "responses"
_TRANSLATED = ("responses", "messages", "gemini")
"""Formats whose calls a proxy asks as chat completions, where it can. The record then has chat messages."""
_LACKING = "after an earlier response"
"""Why such a call is not trained on: the record lacks what the engine had stored."""


def route_of(call: CallRecord) -> str | None:
    """None: it is not asked again."""
    if call.outcome != "ok" or not call.reply:
        return None
    said = call.reply[0]
    if call.dialect == "chat":
        return CHAT_PATH
    if call.dialect in _TRANSLATED and isinstance(said, dict):
        return CHAT_PATH if said.get("role") == "assistant" and not isinstance(said.get("content"), list) else None
    whole = call.untrainable_reason != _LACKING
    return RESPONSES_PATH if call.dialect == "responses" and isinstance(said, list) and whole else None


def with_chat_reply(call: CallRecord) -> CallRecord:
    """The call with its replies as chat messages."""
    replies = [message_of(said) if isinstance(said, list) else said for said in call.reply]
    return call.model_copy(update={"reply": replies})


def message_of(output: list[Any]) -> JsonObject:
    """The items of a response as one chat message."""
    message: JsonObject = {"role": "assistant", "content": None}
    texts, calls = [], []
    for item in output:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "message":
            for part in item.get("content") or ():
                if part.get("type") == "refusal":
                    message["refusal"] = part.get("refusal")
                else:
                    texts.append(part.get("text") or "")
        elif kind in ("function_call", "custom_tool_call"):
            said = item.get("arguments") if kind == "function_call" else json.dumps({"input": item.get("input")})
            function = {"name": item.get("name"), "arguments": said}
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
    if texts:
        message["content"] = "".join(texts)
    return message | ({"tool_calls": calls} if calls else {})


def replies_in(answer: JsonObject, route: str) -> list[JsonObject]:
    """The samples of an answer as ``Reply``. Raises ``LookupError`` or ``TypeError`` where it is none."""
    if route == CHAT_PATH:
        return [{"message": c["message"], "finish_reason": c.get("finish_reason")} for c in answer["choices"]]
    message = message_of(answer["output"])
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return [{"message": message, "finish_reason": "length" if answer.get("status") == "incomplete" else finish}]
