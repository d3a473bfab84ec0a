"""A chat reply as a response, as vLLM's own responses route makes it."""

from __future__ import annotations

import time
import uuid

from slipstream_proxy.dialects.base import dumps, loads
from slipstream_proxy.dialects.chat_events import ChatEvents
from slipstream_proxy.dialects.responses_chat import FUNCTION, reasoning_config, text_config, tool_choice
from slipstream_proxy.dialects.token_arrays import prompt_length
from slipstream_proxy.json_types import Json, JsonObject

_ECHOED = ("instructions", "metadata", "max_tool_calls", "user")


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:16]}"


def _message(text: str, uid: str, status: str = "completed", logprobs: Json = None) -> JsonObject:
    content = [{"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}] if text else []
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


def _called(name: str, arguments: str, call_id: str, uid: str, status: str = "completed") -> JsonObject:
    return {
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        "type": "function_call",
        "id": uid,
        "caller": None,
        "namespace": None,
        "status": status,
    }


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
        self.uid = self.text = self.name = self.call_id = ""
        self.call_index: Json = None
        self.output: list[JsonObject] = []
        self.finish: str | None = None
        self.usage: JsonObject = {}

    def whole(self, reply: bytes) -> bytes:
        read = loads(reply)
        choice = read["choices"][0]
        message = choice["message"]
        self.model, self.usage, self.finish = read["model"], read.get("usage") or {}, choice.get("finish_reason")
        self.prompt = self.usage.get("prompt_tokens", 0)
        if message.get("reasoning"):
            self.output.append(_reasoned(message["reasoning"], _id("rs"), None))
        if message.get("content"):
            self.output.append(_message(message["content"], _id("msg")))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            self.output.append(_called(function["name"], function["arguments"], call["id"], _id("fc")))
        return dumps(self._response(self._status()))

    def _status(self) -> str:
        return "incomplete" if self.finish == "length" else "completed"

    def _response(self, status: str) -> JsonObject:
        asked = self.asked
        temperature = float(asked["temperature"]) if asked.get("temperature") is not None else 1.0
        greedy = temperature == 0  # the engine then says how it samples; between that and 0.01 it goes up to 0.01
        limit = asked.get("max_output_tokens")
        if limit is None and self.context is not None:
            limit = self.context - self.prompt
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
            "tools": [{n: t.get(n) for n in FUNCTION} for t in asked.get("tools") or ()],
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
        details = usage.get("prompt_tokens_details") or {}
        return {
            "input_tokens": usage.get("prompt_tokens", 0),
            "input_tokens_details": {
                "cached_tokens": details.get("cached_tokens") or 0,
                "cache_write_tokens": details.get("created_cache_tokens") or 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": usage.get("completion_tokens", 0),
            "output_tokens_details": {
                "reasoning_tokens": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": usage.get("total_tokens", 0),
        }

    def _end(self) -> bytes | None:
        if not self.model:
            return None
        made = self._close()
        return b"".join((*made, self._sse("response.completed", {"response": self._response(self._status())})))

    def _error(self, error: JsonObject) -> bytes:
        return self._sse("error", {"code": error.get("type"), "message": error.get("message"), "param": None})

    def _events(self, read: JsonObject) -> list[bytes]:
        made: list[bytes] = []
        if not self.model:
            self.model = read["model"]
            self.prompt = len(read.get("prompt_token_ids") or ()) or prompt_length(read)
            begun = self._response("in_progress")
            made = [self._sse(f"response.{kind}", {"response": begun}) for kind in ("created", "in_progress")]
        self.usage = read.get("usage") or self.usage
        for choice in read["choices"]:
            self.finish = choice.get("finish_reason") or self.finish
            for part in _split(choice["delta"]):
                made += self._part(part)
        return made

    def _part(self, delta: JsonObject) -> list[bytes]:
        made: list[bytes] = []
        calls = delta.get("tool_calls")
        if calls and calls[0].get("function") is not None:
            made = self._turn("tool_call", calls[0])
            text = "".join((c.get("function") or {}).get("arguments") or "" for c in calls)
            if text:
                self.text += text
                made.append(
                    self._sse(
                        "response.function_call_arguments.delta",
                        {"delta": text, "item_id": self.uid, "output_index": len(self.output)},
                    )
                )
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

    def _where(self) -> JsonObject:
        return {"item_id": self.uid, "output_index": len(self.output)}

    def _turn(self, kind: str, call: JsonObject | None = None) -> list[bytes]:
        """From one item to the next, where that is another."""
        if self.kind == kind and (call is None or call.get("index") is None or call["index"] == self.call_index):
            return []
        made = self._close()
        self.kind, self.text = kind, ""
        if kind == "tool_call":
            assert call is not None
            self.uid, self.call_index = _id("fc"), call.get("index")
            self.name, self.call_id = call["function"].get("name") or "", call.get("id") or _id("call")
            return [*made, self._item("added", _called(self.name, "", self.call_id, self.uid, "in_progress"))]
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
            item = _called(self.name, self.text, self.call_id, self.uid)
            done = {"arguments": self.text, "item_id": self.uid, "name": self.name, "output_index": len(self.output)}
            made = [self._sse("response.function_call_arguments.done", done)]
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

    def _sse(self, kind: str, fields: JsonObject, after: JsonObject | None = None) -> bytes:
        body = {**fields, "sequence_number": self.number, **(after or {}), "type": kind}
        self.number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps(body))


def _split(delta: JsonObject) -> list[JsonObject]:
    """One delta for each thing it says: reasoning, content, then the calls by their index."""
    made: list[JsonObject] = [{name: delta[name]} for name in ("reasoning", "content") if delta.get(name) is not None]
    groups: dict[Json, list[JsonObject]] = {}
    for call in delta.get("tool_calls") or ():
        groups.setdefault(call.get("index"), []).append(call)
    return [*made, *({"tool_calls": calls} for calls in groups.values())]
