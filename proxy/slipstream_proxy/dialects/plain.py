"""Formats for which the engine gives no token ids: relayed as they are, recorded with their text, never trained on."""

from __future__ import annotations

from typing import Any

from slipstream_proxy.dialects.base import (
    Hide,
    Injected,
    Turn,
    attempt,
    dumps,
    error_text,
    loads,
    openai_error,
    readable,
    stream_objects,
    why_not,
)
from slipstream_proxy.dialects.chat import canonical
from slipstream_proxy.dialects.sampling import sampling_of
from slipstream_proxy.records import CallHead, Choice, Parsed

NO_IDS = "the format gives no token ids"


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return value if isinstance(value, list) else []


class Responses:
    """``POST /v1/responses``. A request in the background or by a stored response's id is recorded without its earlier items."""

    name = "responses"
    path = "/v1/responses"

    def inject(self, body: dict[str, Any]) -> Injected:
        return Injected(body, Hide(), NO_IDS)

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        return reply

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        return event

    def terminal(self, event: bytes) -> bool:
        return event.startswith(
            (b"event: response.completed", b"event: response.failed", b"event: response.incomplete")
        )

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return openai_error(status, message, kind, param)

    def error_event(self, status: int, message: str, kind: str) -> bytes:
        body = {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": 0}
        return b"event: error\ndata: " + dumps(body) + b"\n\n"

    @readable
    def parse(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        body = loads(request)
        read, bad = attempt(self._read, reply, stream=head.stream)
        choices, error = read or ([], None)
        messages = _items(body.get("input"))
        if isinstance(body.get("instructions"), str):
            messages = [{"role": "system", "content": body["instructions"]}, *messages]
        if error is None and head.status >= 400:
            error = error_text(reply)
        reason = why_not(head, bad, [], [])
        return Parsed(messages, _items(body.get("tools")), sampling_of(body), [], choices, reason, error)

    def _read(self, reply: bytes, *, stream: bool) -> tuple[list[Choice], str | None]:
        error = None
        if stream:
            last: dict[str, Any] = {}
            for event in stream_objects(reply):
                if event.get("type") == "error":
                    error = str(event.get("message"))[:4096]
                if isinstance(event.get("response"), dict):
                    last = event["response"]
        else:
            last = loads(reply)
        output = last.get("output") if isinstance(last, dict) else None
        return ([Choice(output, last.get("status"))] if output else []), error

    def turn(self, body: dict[str, Any]) -> Turn:
        turn = Turn()
        for item in _items(body.get("input")):
            if isinstance(item, dict):
                _add_item(turn, item)
        return turn

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        turn = Turn(has_reply=True)
        try:
            choices, _ = self._read(reply, stream=stream)
        except Exception:
            return turn
        for item in choices[0].message if choices else ():
            if isinstance(item, dict):
                _add_item(turn, item)
        return turn


def _add_item(turn: Turn, item: dict[str, Any]) -> None:
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


class Messages:
    """Anthropic's ``POST /v1/messages``."""

    name = "messages"
    path = "/v1/messages"

    def inject(self, body: dict[str, Any]) -> Injected:
        return Injected(body, Hide(), NO_IDS)

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        return reply

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        return event

    def terminal(self, event: bytes) -> bool:
        return event.startswith(b"event: message_stop")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return dumps({"type": "error", "error": {"type": _anthropic_kind(status), "message": message}})

    def error_event(self, status: int, message: str, kind: str) -> bytes:
        return b"event: error\ndata: " + self.error(status, message, kind) + b"\n\n"

    @readable
    def parse(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        body = loads(request)
        read, bad = attempt(self._read, reply, stream=head.stream)
        choices, error = read or ([], None)
        messages = _items(body.get("messages"))
        if body.get("system") is not None:
            messages = [{"role": "system", "content": body["system"]}, *messages]
        if error is None and head.status >= 400:
            error = error_text(reply)
        return Parsed(
            messages, _items(body.get("tools")), sampling_of(body), [], choices, why_not(head, bad, [], []), error
        )

    def _read(self, reply: bytes, *, stream: bool) -> tuple[list[Choice], str | None]:
        if not stream:
            read = loads(reply)
            return (
                [Choice({"role": "assistant", "content": read["content"]}, read.get("stop_reason"))]
                if read.get("content")
                else []
            ), None
        blocks: dict[int, dict[str, Any]] = {}
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
        return ([Choice({"role": "assistant", "content": content}, stop)] if content else []), error

    def turn(self, body: dict[str, Any]) -> Turn:
        turn = Turn()
        for message in _items(body.get("messages")):
            if isinstance(message, dict):
                _add_message(turn, message)
        return turn

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        turn = Turn(has_reply=True)
        try:
            choices, _ = self._read(reply, stream=stream)
        except Exception:
            return turn
        for choice in choices:
            _add_message(turn, choice.message)
        return turn


def _add_message(turn: Turn, message: dict[str, Any]) -> None:
    turn.has_reply = turn.has_reply or message.get("role") == "assistant"
    content = message.get("content")
    said = []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            turn.tool_ids += [part[name] for name in ("id", "tool_use_id") if isinstance(part.get(name), str)]
            if part.get("type") not in ("thinking", "redacted_thinking"):
                said.append(
                    {k: v for k, v in part.items() if k not in ("cache_control", "citations") and v is not None}
                )
    turn.messages.append(canonical({"role": message.get("role"), "content": said or content}))


def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("text", "thinking", "partial_json", "signature"):
        if isinstance(delta.get(name), str):
            block[name] = block.get(name, "") + delta[name]


def _anthropic_kind(status: int) -> str:
    kinds = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kinds |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error", 503: "overloaded_error"}
    return kinds.get(status, "invalid_request_error" if status < 500 else "api_error")
