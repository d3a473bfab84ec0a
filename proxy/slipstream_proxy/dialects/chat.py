"""``POST /v1/chat/completions``.

An engine with Slipstream's plugin is asked by one member (``packed``). Else it is asked for ``return_token_ids`` and
``logprobs`` (and reasoning where the client hides it, because vLLM hides the ids with it). vLLM writes ``null`` where
ids and log-probabilities are not asked for; events without anything but ids it does not send at all.
"""

from __future__ import annotations

from typing import Final

from slipstream_proxy.dialects.base import (
    Hide,
    Injected,
    Speech,
    Turn,
    dumps,
    event_data,
    loads,
    null_ids,
    null_logprobs,
    stream_events,
    stream_objects,
)
from slipstream_proxy.dialects.call_reader import Read, parsed
from slipstream_proxy.dialects.chat_message import (
    add_delta,
    add_said,
    as_list,
    canonical,
    quoted_ids,
    stop_of,
    tool_ids,
)
from slipstream_proxy.dialects.chat_speech import ChatSpeech
from slipstream_proxy.dialects.large_replies import nulled
from slipstream_proxy.dialects.openai import PACKED, OpenAI, ask_for_ids
from slipstream_proxy.dialects.sampling import forces
from slipstream_proxy.dialects.token_arrays import ASKED, Sampled
from slipstream_proxy.json_types import Json, JsonList, JsonObject
from slipstream_proxy.parse_weight import MOST_OF_REPLY, too_heavy
from slipstream_proxy.records import CallHead, Choice, Parsed

_EMPTY: Final = b'"delta":{},"logprobs":null,"finish_reason":null'
_SPACED_EMPTY: Final = b'"delta": {}, "logprobs": null, "finish_reason": null'
_USUAL: Final = Hide(ids=True, logprobs=True)


class Chat(OpenAI):
    name = "chat"
    path = "/v1/chat/completions"

    def inject(self, body: JsonObject, *, packed: bool = False) -> Injected:
        if "messages" not in body:
            return Injected(body, Hide(), "no messages")  # the engine's refusal counts the body's fields
        if packed:
            body[ASKED] = 1
            return Injected(body, PACKED)
        logprobs_hidden = reasoning = False
        ids, note = ask_for_ids(body)
        logprobs = body.get("logprobs")
        if logprobs is None or logprobs is False:
            if body.get("top_logprobs") or body.get("logprob_token_ids"):
                note = "logprobs refused"  # the engine answers 400 to these without logprobs, and so must we
            else:
                logprobs_hidden = True
                body["logprobs"] = True
        elif logprobs is not True:
            note = "unreadable logprobs"
        if body.get("include_reasoning") is False:
            if forces(body) in ("structured output", "forced tool") or _masked_calls(body):
                note = "hidden reasoning under a grammar"  # showing it would move where the grammar begins
            elif not (ids and logprobs_hidden):
                note = "hidden reasoning with its tokens asked for"  # with no parser in the engine nothing is hidden
            else:
                reasoning = True
                body["include_reasoning"] = True
        hide = _USUAL if ids and logprobs_hidden and not reasoning else Hide(ids, logprobs_hidden, reasoning)
        return Injected(body, hide, note)

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        if hide.reasoning:
            return _whole_by_json(reply, hide)
        cut = nulled(reply, ids=hide.ids, logprobs=hide.logprobs)
        return _whole_by_json(reply, hide) if cut is None else cut

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        if hide.reasoning:
            return _event_by_json(event, hide)
        if hide.logprobs:
            cut = null_logprobs(event)
            if cut is None:
                return _event_by_json(event, hide)
            event = cut
        if hide.ids:
            event = null_ids(event)
            if hide.logprobs and event.find(b"{},") >= 0 and (_EMPTY in event or _SPACED_EMPTY in event):
                return None
        return event

    def read(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        return parsed(request, reply, head, _read, _texts)

    def turn(self, body: JsonObject) -> Turn:
        turn = Turn()
        for message in as_list(body.get("messages")):
            if not isinstance(message, dict):
                continue
            turn.messages.append(canonical(message))
            if message.get("role") == "assistant":
                turn.has_reply = True
                turn.tool_ids += tool_ids(message) or quoted_ids(message)
            elif isinstance(message.get("tool_call_id"), str):
                turn.tool_ids.append(message["tool_call_id"])
        return turn

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        if stream:
            speech = ChatSpeech()
            for event in stream_events(reply):
                speech.hear(event)
            return speech.turn()
        turn = Turn(has_reply=True)
        try:
            _, choices, _ = _read(reply, stream=False)
        except Exception:
            return turn
        for choice in choices:
            add_said(turn, choice.message, choice.stop)
        return turn

    def speech(self) -> Speech:
        return ChatSpeech()


def _masked_calls(body: JsonObject) -> bool:
    """VLLM puts a grammar on the tool calls of such a request, where it does not force any."""
    tools = as_list(body.get("tools"))
    return bool(tools) and (body.get("parallel_tool_calls") is False or any(map(_is_strict, tools)))


def _is_strict(tool: Json) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and bool(function.get("strict"))


def _texts(body: JsonObject) -> tuple[JsonList, JsonList]:
    return as_list(body.get("messages")), as_list(body.get("tools"))


def _read(reply: bytes, *, stream: bool) -> Read:
    if stream:
        return _read_stream(reply)
    read = loads(reply)
    if not isinstance(read, dict):
        return [], [], None
    choices = [
        Choice(c.get("message"), c.get("finish_reason"), c.get("token_ids") or [], _logprobs(c), stop_of(c))
        for c in as_list(read.get("choices"))
    ]
    sampled = Sampled()
    sampled.add(read)
    if sampled.found:
        sampled.fill({c.get("index", 0): choice for c, choice in zip(read["choices"], choices, strict=True)})
        return sampled.prompt, choices, None
    return read.get("prompt_token_ids") or [], choices, None


def _logprobs(choice: JsonObject) -> list[float]:
    content = (choice.get("logprobs") or {}).get("content")
    return [float(t["logprob"]) for t in content] if content else []


def _read_stream(reply: bytes) -> Read:
    prompt: list[int] = []
    found: dict[int, Choice] = {}
    sampled = Sampled()
    error = None
    for event in stream_objects(reply):
        sampled.add(event)
        if event.get("error"):
            error = dumps(event["error"])[:4096].decode("utf-8", "replace")
        if not prompt and event.get("prompt_token_ids"):
            prompt = event["prompt_token_ids"]
        for part in as_list(event.get("choices")):
            choice = found.setdefault(part.get("index", 0), Choice({"role": "assistant", "content": None}, None))
            add_delta(choice.message, part.get("delta") or {})
            choice.completion_ids += part.get("token_ids") or []
            choice.logprobs += _logprobs(part)
            choice.finish_reason = part.get("finish_reason") or choice.finish_reason
            choice.stop = stop_of(part) or choice.stop
    if sampled.found:
        prompt = sampled.prompt
        sampled.fill(found)
    return prompt, [found[i] for i in sorted(found)], error


def _hide_in(choice: JsonObject, hide: Hide) -> None:
    if (hide.logprobs or hide.reasoning) and "logprobs" in choice:
        choice["logprobs"] = None
    if (hide.ids or hide.reasoning) and "token_ids" in choice:
        choice["token_ids"] = None


def _whole_by_json(reply: bytes, hide: Hide) -> bytes:
    """The same by reading and writing the reply: for hidden reasoning and engines that order their keys otherwise."""
    if too_heavy(reply, MOST_OF_REPLY):
        return reply
    try:
        read = loads(reply)
        for choice in read["choices"]:
            _hide_in(choice, hide)
            if hide.reasoning and choice["message"].get("reasoning") is not None:
                choice["message"]["reasoning"] = None
    except (ValueError, KeyError, TypeError, AttributeError):
        return reply
    if hide.ids and "prompt_token_ids" in read:
        read["prompt_token_ids"] = None
    return dumps(read)


def _event_by_json(event: bytes, hide: Hide) -> bytes | None:
    data = event_data(event)
    if not data.startswith(b"{"):
        return event
    try:
        read = loads(data)
        for choice in read.get("choices", ()):
            delta = choice["delta"]
            _hide_in(choice, hide)
            says = delta.get("content") or delta.get("tool_calls")
            if hide.reasoning and "role" not in delta and not says:
                if choice.get("finish_reason") is None:
                    return None
                choice["delta"] = {}
            elif hide.reasoning and "role" not in delta:
                order = ("content", "reasoning", "tool_calls")
                choice["delta"] = {
                    k: None if k == "reasoning" else delta[k] for k in order if k == "reasoning" or k in delta
                }
            elif not delta and choice.get("finish_reason") is None and hide.ids and hide.logprobs:
                return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return event
    if hide.ids and "prompt_token_ids" in read:
        read["prompt_token_ids"] = None
    return b"data: " + dumps(read) + b"\n\n"
