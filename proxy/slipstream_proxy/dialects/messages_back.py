"""A chat reply as Anthropic's message, as vLLM's own messages route makes it."""

from __future__ import annotations

import json
import uuid

from slipstream_proxy.dialects.base import dumps, loads
from slipstream_proxy.dialects.chat_events import ChatEvents
from slipstream_proxy.json_types import Json, JsonObject


def _usage(usage: Json) -> dict[str, int]:
    if not isinstance(usage, dict):
        return {"input_tokens": 0, "output_tokens": 0}
    details = usage.get("prompt_tokens_details") or {}
    read, written = details.get("cached_tokens"), details.get("created_cache_tokens")
    made = {"input_tokens": max(0, usage["prompt_tokens"] - (read or 0) - (written or 0))}
    made["output_tokens"] = usage.get("completion_tokens") or 0
    if written is not None:
        made["cache_creation_input_tokens"] = written
    if read is not None:
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


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class MessagesTranslator(ChatEvents):
    """A chat reply as a message: ``whole`` at once, or event by event."""

    context_needed = False

    def __init__(self) -> None:
        self.context: int | None = None
        self.finish: str | None = None
        self.stop: Json = None
        self.begun = False
        self.index = 0
        self.kind: str | None = None
        self.tool: str | None = None
        self.tools: dict[int, str] = {}
        self.used = False
        self.arguments = ""
        self.later = ""
        """Text that came while a tool's block was open."""

    def whole(self, reply: bytes) -> bytes:
        """Raises ValueError where the engine's own route could not make a message of it either."""
        read = loads(reply)
        choice = read["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        content: list[JsonObject] = []
        if message.get("reasoning"):
            content.append({"type": "thinking", "thinking": message["reasoning"], "signature": uuid.uuid4().hex})
        if message.get("content"):
            content.append({"type": "text", "text": message["content"]})
        for call in calls:
            function = call["function"]
            content.append(
                {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": function["name"],
                    "input": loads(function["arguments"].encode()),
                }
            )
        reason, sequence = _stop(choice.get("finish_reason"), choice.get("stop_reason"), tools=bool(calls), whole=True)
        made = {
            "id": read["id"],
            "type": "message",
            "role": "assistant",
            "content": content or [{"type": "text", "text": ""}],
            "model": read["model"],
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": _usage(read.get("usage")),
        }
        return dumps({name: value for name, value in made.items() if value is not None})

    def _end(self) -> bytes | None:
        return b"".join(self._close()) + _sse("message_stop", {}) if self.begun else None

    def _error(self, error: JsonObject) -> bytes:
        return _sse("error", {"error": {"type": "internal_error", "message": str(error.get("message"))}})

    def _events(self, read: JsonObject) -> list[bytes]:
        if not self.begun:
            self.begun = True
            message = {
                "id": read["id"],
                "type": "message",
                "role": "assistant",
                "content": [],
                "model": read["model"],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": _usage(read.get("usage")),
            }
            return [_sse("message_start", {"message": message})]
        if not read["choices"]:
            made = self._close()
            done = self.used and _is_json(self.arguments)
            reason, sequence = _stop(self.finish or "stop", self.stop, tools=self.used, whole=done)
            delta = {"stop_reason": reason, "stop_sequence": sequence}
            return [*made, _sse("message_delta", {"delta": delta, "usage": _usage(read.get("usage"))})]
        choice = read["choices"][0]
        if choice.get("finish_reason") is not None:
            self.finish, self.stop = choice["finish_reason"], choice.get("stop_reason")
        delta = choice["delta"]
        made = []
        if delta.get("reasoning"):
            made += self._say("thinking", "thinking", delta["reasoning"])
        if delta.get("content"):
            if self.kind == "tool_use":
                self.later += delta["content"]
            else:
                made += self._say("text", "text", delta["content"])
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

    def _call(self, call: JsonObject) -> list[bytes]:
        made: list[bytes] = []
        function = call.get("function") or {}
        name, arguments = function.get("name"), function.get("arguments")
        if call.get("id") is not None:
            self.tools[call["index"]] = call["id"]
            if self.tool != call["id"] and name is not None:
                made = self._close()
                self.used, self.arguments = True, ""
                made.append(self._open({"type": "tool_use", "id": call["id"], "name": name, "input": {}}))
        if arguments and self.tool is not None and self.tool == self.tools.get(call["index"]):
            self.arguments += arguments
            made.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return made

    def _open(self, block: JsonObject) -> bytes:
        self.kind = block["type"]
        self.tool = block.get("id")
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
            self.kind = self.tool = None
        if self.later:
            text, self.later = self.later, ""
            made += self._say("text", "text", text)
            made += self._close()
        return made


def _sse(kind: str, fields: JsonObject) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))
