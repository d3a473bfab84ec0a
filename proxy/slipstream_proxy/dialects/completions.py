"""``POST /v1/completions``: one prompt a call is captured; a list of prompts is relayed and recorded as text."""

from __future__ import annotations

from slipstream_proxy.dialects.base import (
    PACKED_HIDE,
    Hide,
    Injected,
    OpenAI,
    Read,
    Turn,
    ask_for_ids,
    counted,
    dumps,
    error_of,
    loads,
    nulled,
    number,
    parsed,
    put_behind,
    stream_objects,
)
from slipstream_proxy.dialects.token_arrays import CAPTURE_FIELD, Sampled
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.json_types import JsonList, JsonObject
from slipstream_proxy.log.records import CallHead, Choice, Parsed
from slipstream_proxy.parse_weight import MOST_OF_REPLY, too_heavy


class Completions(OpenAI):
    name = "completions"
    path = "/v1/completions"

    def inject(self, body: JsonObject, *, packed: bool = False) -> Injected:
        if body.get("echo"):
            return Injected(body, Hide(), "echo")  # ids asked for change the echoed text of a stream
        hide, note = Hide(), None
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) != 1 and not all(isinstance(t, int) for t in prompt):
            note = UntrainableReason.SEVERAL_PROMPTS.of()
        if packed:
            body[CAPTURE_FIELD] = 1
            return Injected(body, PACKED_HIDE, note)
        hide.ids, unreadable = ask_for_ids(body)
        note = unreadable or note
        if body.get("logprobs") is None:
            if body.get("logprob_token_ids"):
                note = UntrainableReason.LOGPROBS_REFUSED.of()
            else:
                hide.logprobs = True
                body["logprobs"] = 0
        return Injected(body, hide, note)

    def whole(self, reply: bytes, hide: Hide) -> bytes:
        cut = nulled(reply, ids=hide.ids, logprobs=hide.logprobs)
        return _by_json(reply, hide) if cut is None else cut

    def event(self, event: bytes, hide: Hide) -> bytes | None:
        if not hide or not event.startswith(b"data: {"):
            return event
        return b"data: " + self.whole(event[6:-2], hide) + event[-2:]

    def read(self, request: bytes, reply: bytes, head: CallHead) -> Parsed:
        return parsed(request, reply, head, _read, _texts)

    def whole_events(self, reply: bytes) -> JsonList:
        prompt, choices, error = _read(reply, stream=True)
        said = [
            {
                "index": index,
                "text": choice.message["content"],
                "logprobs": {"token_logprobs": choice.logprobs} if choice.logprobs else None,
                "finish_reason": choice.finish_reason,
                "token_ids": choice.completion_ids or None,
                "prompt_token_ids": prompt if not index else None,
            }
            for index, choice in enumerate(choices)
        ]
        return [{"object": "text_completion", "choices": said, **counted(reply), **error_of(error)}]

    def turn(self, body: JsonObject) -> Turn:
        return Turn()

    def said(self, reply: bytes, *, stream: bool) -> Turn:
        return Turn()


def _texts(body: JsonObject) -> tuple[JsonList, JsonList]:
    return [{"role": "user", "content": body.get("prompt")}], []


def _read(reply: bytes, *, stream: bool) -> Read:
    prompt: list[int] = []
    found: dict[int, Choice] = {}
    sampled = Sampled()
    error = None
    for read in stream_objects(reply) if stream else [loads(reply)]:
        sampled.add(read)
        if read.get("error"):
            error = dumps(read["error"])[:4096].decode("utf-8", "replace")
        for part in read.get("choices") or ():
            choice = found.setdefault(part.get("index", 0), Choice({"role": "assistant", "content": ""}, None))
            put_behind(choice.message, "content", part.get("text") or "")
            choice.completion_ids += part.get("token_ids") or []
            choice.logprobs += _logprobs(part)
            choice.finish_reason = part.get("finish_reason") or choice.finish_reason
            if not prompt and part.get("prompt_token_ids"):
                prompt = part["prompt_token_ids"]
    if sampled.found:
        prompt = sampled.prompt
        sampled.fill(found)
    return prompt, [found[i] for i in sorted(found)], error


def _by_json(reply: bytes, hide: Hide) -> bytes:
    if too_heavy(reply, MOST_OF_REPLY):
        return reply
    try:
        read = loads(reply)
        for choice in read["choices"]:
            if hide.logprobs and "logprobs" in choice:
                choice["logprobs"] = None
            for name in ("token_ids", "prompt_token_ids"):
                if hide.ids and name in choice:
                    choice[name] = None
    except (ValueError, KeyError, TypeError, AttributeError):
        return reply
    return dumps(read)


def _logprobs(choice: JsonObject) -> list[float]:
    """With ``echo`` the first token has none."""
    found = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    return [number(x) for x in found if x is not None]
