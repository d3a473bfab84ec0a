"""A message of a chat: its parts put together as a stream brings them, and the digest of what it says."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from slipstream_proxy.dialects.base import Turn, dumps, loads, put_behind
from slipstream_proxy.json_types import Json, JsonList, JsonObject


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


def text_of(content: Json) -> Json:
    """Content as text where it is text: clients send back a string as parts, and an empty one as null."""
    if isinstance(content, list):
        if all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
            return "".join(p["text"] for p in content)
        return content
    return content or ""


def canonical(message: JsonObject) -> bytes:
    """A digest of what a message says, whatever its client does to the fields around it."""
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
    return hashlib.blake2b(said, digest_size=16).digest()


def add_said(turn: Turn, message: JsonObject, stop: str) -> None:
    """A reply's message. ``stop``: the stop string that ended it."""
    turn.messages.append(canonical(message))
    turn.tool_ids += tool_ids(message)
    if stop:  # some clients put back the stop string that the engine cut off
        turn.messages.append(canonical({**message, "content": f"{text_of(message.get('content'))}{stop}"}))


def stop_of(choice: JsonObject) -> str:
    """The stop string that ended it."""
    stop = choice.get("stop_reason")
    return stop if isinstance(stop, str) else ""


def add_delta(message: JsonObject, delta: JsonObject) -> None:
    """Put a delta to the message it belongs to."""
    for name, value in delta.items():
        if name == "tool_calls":
            for part in as_list(value):
                _add_tool(message.setdefault("tool_calls", []), part)
        elif isinstance(value, str) and name != "role":
            put_behind(message, name, value)
        elif value is not None:
            message[name] = value


def _add_tool(calls: list[JsonObject], part: JsonObject) -> None:
    index = part.get("index", len(calls))
    while len(calls) <= index < 1024:
        calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call, function = calls[index], part.get("function") or {}
    call["id"] = part.get("id") or call["id"]
    for name in ("name", "arguments"):
        put_behind(call["function"], name, function.get(name) or "")
