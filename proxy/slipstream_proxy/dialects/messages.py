"""Anthropic's ``POST /v1/messages``."""

from __future__ import annotations

from slipstream_proxy.dialects import messages_back, messages_chat
from slipstream_proxy.dialects.base import ReplyTranslator, Turn, dumps, loads, put_behind, stream_objects
from slipstream_proxy.dialects.call_reader import Read
from slipstream_proxy.dialects.chat_message import canonical
from slipstream_proxy.dialects.through_chat import ThroughChat, items
from slipstream_proxy.json_types import JsonList, JsonObject
from slipstream_proxy.records import Choice


class Messages(ThroughChat):
    name = "messages"
    path = "/v1/messages"

    def _to_chat(self, body: JsonObject) -> JsonObject:
        return messages_chat.to_chat(body)

    def _back(self, body: JsonObject) -> ReplyTranslator:
        return messages_back.MessagesTranslator()

    def terminal(self, event: bytes) -> bool:
        return event.startswith(b"event: message_stop")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return dumps({"type": "error", "error": {"type": _anthropic_kind(status), "message": message}})

    def error_event(self, status: int, message: str, kind: str) -> bytes:
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

    def turn(self, body: JsonObject) -> Turn:
        return self._turn(items(body.get("messages")))

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        try:
            _, choices, _ = self._read(reply, stream=stream)
        except Exception:
            choices = []
        return self._turn([c.message for c in choices], has_reply=True)

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
