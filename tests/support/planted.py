"""Replies with a secret in them, of any format and in any pieces."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable

from slipstream_proxy.dialects import BY_NAME
from slipstream_vllm import packing

SIGNS = string.ascii_letters + string.digits + "-_ .:/+=@#~'\"\\\n\t{}[],äß€日🙂"


def pieces(rng: random.Random, text: str) -> list[str]:
    cuts = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randint(1, len(text)))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def dumped(rng: random.Random, value: object) -> str:
    """JSON as one client or the other writes it."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, separators=rng.choice([(",", ":"), (", ", ": ")]))
    if rng.random() < 0.3:  # each letter may be escaped
        text = "".join(f"\\u{ord(x):04x}" if x in "qz" and rng.random() < 0.5 else x for x in text)
    return text


def sse(rng: random.Random, events: list[dict]) -> bytes:
    named = [f"event: {e['type']}\n" if "type" in e else "" for e in events]
    end = rng.choice(["\n\n", "\r\n\r\n"])
    return "".join(f"{name}data: {dumped(rng, e)}{end}" for name, e in zip(named, events, strict=True)).encode()


NESTED_DELTAS: dict[str, Callable[[str], dict]] = {
    "function_call": lambda part: {"function_call": {"arguments": part}},
    "audio": lambda part: {"audio": {"id": "a", "transcript": part}},
    "reasoning_details": lambda part: {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": part}]},
    "parts": lambda part: {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": part}]}]},
}
"""Of engines that bring a text inside of an object or a list: OpenAI's older and audio models, OpenRouter, Mistral."""


def chat_stream(rng: random.Random, said: str, field: str) -> bytes:
    events: list[dict] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 2]}
    ]
    packed = rng.random() < 0.5
    for n, part in enumerate(pieces(rng, said)):
        delta: dict = NESTED_DELTAS[field](part) if field in NESTED_DELTAS else {field: part}
        if field == "tool_calls":
            call = {"index": 0, "function": {"arguments": part} | ({"name": "f"} if not n else {})}
            delta = {field: [call | ({"id": "call_1", "type": "function"} if not n else {})]}
        choice: dict = {"index": 0, "delta": delta, "finish_reason": None}
        event: dict = {"model": "tiny", "choices": [choice]}
        if packed:
            event["slipstream"] = packing.pack([(0, [1, 2])] if not n else [], [(0, [n], [-0.5])])
        else:
            choice |= {
                "token_ids": [n],
                "logprobs": {"content": [{"token": part, "logprob": -0.5, "bytes": list(part.encode())}]},
            }
        events.append(event)
    events.append(
        {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 3},
        }
    )
    return sse(rng, events) + b"data: [DONE]\n\n"


def completions_stream(rng: random.Random, said: str) -> bytes:
    return (
        sse(
            rng,
            [
                {
                    "choices": [
                        {
                            "index": 0,
                            "text": part,
                            "token_ids": [n],
                            "logprobs": {"tokens": [part], "token_logprobs": [-0.1]},
                        }
                    ]
                }
                for n, part in enumerate(pieces(rng, said))
            ],
        )
        + b"data: [DONE]\n\n"
    )


def responses_stream(rng: random.Random, said: str) -> bytes:
    deltas = [{"type": "response.output_text.delta", "delta": part} for part in pieces(rng, said)]
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}]
    return sse(
        rng,
        [
            {"type": "response.created", "response": {"id": "resp_1", "output": []}},
            *deltas,
            {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": output}},
        ],
    )


def messages_stream(rng: random.Random, said: str, field: str) -> bytes:
    start = {
        "text": {"type": "text", "text": ""},
        "thinking": {"type": "thinking", "thinking": ""},
        "partial_json": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    }
    parts = [{"type": "content_block_delta", "index": 0, "delta": {field: part}} for part in pieces(rng, said)]
    return sse(
        rng,
        [
            {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": start[field]},
            *parts,
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ],
    )


def gemini_stream(rng: random.Random, said: str) -> bytes:
    return sse(
        rng,
        [
            {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": part}]}}]}
            for part in pieces(rng, said)
        ],
    )


def whole_reply(name: str, said: str) -> object:
    return {
        "chat": {
            "choices": [
                {
                    "message": {
                        "role": "assistant",
                        "content": said,
                        "reasoning": said,
                        "tool_calls": [{"function": {"name": "f", "arguments": json.dumps({"a": [said]})}}],
                    },
                    "token_ids": [5],
                    "logprobs": {"content": [{"token": said, "logprob": -1.0}]},
                    "finish_reason": "stop",
                }
            ]
        },
        "completions": {"choices": [{"text": said}]},
        "responses": {"output": [{"type": "function_call", "arguments": json.dumps({said: 1})}]},
        "messages": {"content": [{"type": "tool_use", "input": {"deep": [{said: said}]}}], "model": said},
        "gemini": {"candidates": [{"content": {"parts": [{"functionCall": {"args": {"x": said}}}]}}]},
    }[name]


def case(
    rng: random.Random, secret: str, name: str | None = None, *, stream: bool | None = None
) -> tuple[str, bool, bytes]:
    """A format's name, whether the reply is a stream, and the reply with the secret in it."""
    said = f"before {secret} after"
    name = rng.choice(sorted(BY_NAME)) if name is None else name
    if stream is False or (stream is None and rng.random() < 0.35):
        return name, False, dumped(rng, whole_reply(name, said)).encode()
    quoted = dumped(rng, {"card": said})
    if name == "chat":
        field = rng.choice(["content", "reasoning", "reasoning_content", "tool_calls", *NESTED_DELTAS])
        return name, True, chat_stream(rng, quoted if field in ("tool_calls", "function_call") else said, field)
    if name == "messages":
        field = rng.choice(["text", "thinking", "partial_json"])
        return name, True, messages_stream(rng, quoted if field == "partial_json" else said, field)
    made = {"completions": completions_stream, "responses": responses_stream, "gemini": gemini_stream}[name]
    return name, True, made(rng, said)


_PAIR = "[QZXJ][vwkx]"
SECRET_PATTERN = re.compile(f"(?:{_PAIR}){{5}}.{{0,4}}?(?:{_PAIR}){{5}}", re.DOTALL)
PIECE_PATTERN = re.compile(f"(?:{_PAIR}){{3,}}".encode())
"""Six signs of a planted secret in a row: no id, digest or word of ours has them."""


def planted(rng: random.Random, signs: str = SIGNS) -> str:
    """A secret that ``redact`` knows whole, and a scan by any six signs of it. ``signs``: what may stand inside."""

    def core() -> str:
        return "".join(rng.choice("QZXJ") + rng.choice("vwkx") for _ in range(5))

    inside = "".join(rng.choice(signs) for _ in range(rng.randint(0, 4)))
    return core() + inside + core()


def redact(record: dict[str, str]) -> dict[str, str]:
    """``proxy.redact``: it knows a secret where it sees the whole of it."""
    return {name: SECRET_PATTERN.sub("[GONE]", text) for name, text in record.items()}
