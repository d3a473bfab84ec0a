"""``POST /v1/responses``. A request by an earlier response's id continues its episode; the record lacks its items."""

from __future__ import annotations

from slipstream_proxy.dialects import responses_back, responses_chat
from slipstream_proxy.dialects.base import (
    ReplyTranslator,
    Turn,
    dumps,
    loads,
    openai_error,
    stream_events,
    stream_objects,
)
from slipstream_proxy.dialects.call_reader import Read
from slipstream_proxy.dialects.chat_message import canonical
from slipstream_proxy.dialects.through_chat import ThroughChat, items
from slipstream_proxy.json_types import JsonList, JsonObject
from slipstream_proxy.records import Choice


class Responses(ThroughChat):
    name = "responses"
    path = "/v1/responses"

    def _to_chat(self, body: JsonObject) -> JsonObject:
        return responses_chat.to_chat(body)

    def _back(self, body: JsonObject) -> ReplyTranslator:
        return responses_back.ResponsesTranslator(body)

    def terminal(self, event: bytes) -> bool:
        return event.startswith(
            (b"event: response.completed", b"event: response.failed", b"event: response.incomplete")
        )

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return openai_error(status, message, kind, param)

    def error_event(self, status: int, message: str, kind: str) -> bytes:
        body = {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": 0}
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
