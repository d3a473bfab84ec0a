"""``proxy.redact``: no secret passes it by, whatever the format, the field and the pieces that it comes in."""

from __future__ import annotations

import json
import os
import random
import string

import pytest
from tests.support.dataplane import post, redact_with

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.log.records import CallHead
from slipstream_proxy.redaction import Redaction, make_texts
from slipstream_vllm import packing

CASES = int(os.environ.get("REDACTION_CASES", "400"))
"""``REDACTION_CASES=100000`` tries as many."""
SIGNS = string.ascii_letters + string.digits + "-_ .:/+=@#'\"\\\n\t{}[],äß€日🙂"


def redaction_of(secret: str) -> Redaction:
    return Redaction(lambda record: {name: text.replace(secret, "[GONE]") for name, text in record.items()}, b"key")


def secret_of(rng: random.Random) -> str:
    body = "".join(rng.choice(SIGNS) for _ in range(rng.randint(5, 24)))
    return f"q{body}z"


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


def chat_stream(rng: random.Random, said: str, field: str) -> bytes:
    events: list[dict] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 2]}
    ]
    packed = rng.random() < 0.5
    for n, part in enumerate(pieces(rng, said)):
        delta: dict = {field: part}
        if field == "tool_calls":
            call = {"index": 0, "function": {"arguments": part}}
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


def case(rng: random.Random, secret: str) -> tuple[str, bool, bytes]:
    """A format's name, whether the reply is a stream, and the reply with the secret in it."""
    said = f"before {secret} after"
    name = rng.choice(sorted(BY_NAME))
    if rng.random() < 0.35:
        return name, False, dumped(rng, whole_reply(name, said)).encode()
    quoted = dumped(rng, {"card": said})
    if name == "chat":
        field = rng.choice(["content", "reasoning", "reasoning_content", "tool_calls"])
        return name, True, chat_stream(rng, quoted if field == "tool_calls" else said, field)
    if name == "messages":
        field = rng.choice(["text", "thinking", "partial_json"])
        return name, True, messages_stream(rng, quoted if field == "partial_json" else said, field)
    made = {"completions": completions_stream, "responses": responses_stream, "gemini": gemini_stream}[name]
    return name, True, made(rng, said)


def leaves(value: object) -> list[str]:
    """All texts in it, those too in JSON that is a text."""
    if isinstance(value, dict):
        return [x for pair in value.items() for part in pair for x in leaves(part)]
    if isinstance(value, list):
        return [x for part in value for x in leaves(part)]
    if isinstance(value, str):
        try:
            return [value, *leaves(json.loads(value))]
        except ValueError:
            return [value]
    return [str(value)]


@pytest.mark.parametrize("seed", range(4))
def test_no_secret_is_stored_whatever_it_is_and_however_it_comes(seed):
    rng = random.Random(seed)
    for _ in range(CASES // 4):
        secret = secret_of(rng)
        name, stream, reply = case(rng, secret)
        request = dumped(
            rng,
            {
                "model": "tiny",
                "stream": stream,
                "messages": [{"role": "user", "content": f"it is {secret}", "x": json.dumps({"k": secret})}],
            },
        ).encode()
        tags = {"a": secret}
        dialect = BY_NAME[name]
        asked, kept, note = make_texts(redaction_of(secret), request, reply, tags, stream=dialect if stream else None)
        assert note == "redacted" and tags == {"a": "[GONE]"}
        head = CallHead(
            "i",
            "-",
            "e",
            None,
            "train",
            {},
            "tiny",
            None,
            None,
            "live",
            "sole",
            name,
            stream,
            0.0,
            0.0,
            None,
            200,
            "ok",
            "u",
        )
        parsed = dialect.parse(asked, kept, head)
        assert parsed.error is None, (name, parsed.error)
        texts = leaves([json.loads(asked), kept.decode(), parsed.messages, [c.message for c in parsed.choices]])
        assert not [text for text in texts if secret in text], (name, secret, kept)
        assert (
            "[GONE]" in json.dumps([c.message for c in parsed.choices])
            or name == "gemini"
            or not stream
            or "thinking" in kept.decode()
        )
        assert not parsed.prompt_ids and not any(c.completion_ids or c.logprobs for c in parsed.choices)
        for part in (b'"token":', b'"bytes":', b'"tokens":'):
            assert part not in kept


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_without_a_secret_says_the_same_as_before(seed):
    """Text, ids and log-probabilities, usage and how it ended: the call trains as it would without ``proxy.redact``."""
    rng = random.Random(100 + seed)
    for _ in range(40):
        name, stream, reply = case(rng, "nothing-to-hide")
        if not stream:
            continue
        dialect = BY_NAME[name]
        _, kept, note = make_texts(Redaction(lambda record: record), b'{"messages":[]}', reply, stream=dialect)
        head = CallHead(
            "i",
            "-",
            "e",
            None,
            "train",
            {},
            "tiny",
            None,
            None,
            "live",
            "sole",
            name,
            True,
            0.0,
            0.0,
            None,
            200,
            "ok",
            "u",
        )
        before, after = dialect.parse(b'{"messages":[]}', reply, head), dialect.parse(b'{"messages":[]}', kept, head)
        assert (note, after) == (None, before)


async def test_no_name_that_is_kept_or_shown_holds_a_secret(start, fake, caplog):
    secret = "4111-1111-1111-1111"
    proxy = await start(proxy={"metric_tags": ["user"]})
    redact_with(proxy.plane, lambda record: {name: text.replace(secret, "CARD") for name, text in record.items()})
    named = {
        "x-slipstream-task": f"pay with {secret}", "x-slipstream-episode": f"run of {secret}", "x-slipstream-kind": f"kind-{secret}",
        f"x-slipstream-tag-{secret}": "v", "x-slipstream-tag-user": secret, "x-stainless-retry-count": "0", "idempotency-key": f"once {secret}",
    }  # fmt: skip
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    status, headers, _ = await post(proxy.url, ask, headers=named)
    assert status == 200 and secret not in json.dumps(dict(headers))
    await post(proxy.url, {**ask, "model": f"no model {secret}"}, headers={"x-slipstream-episode": secret})
    await post(proxy.url, ask, headers={"x-slipstream-episode": f"run of {secret}"})
    await post(proxy.url, ask, headers={"x-slipstream-episode": f"another run of {secret}"})
    frames = await proxy.record(4)
    spool = b"".join(p.read_bytes() for p in proxy.config.spool_dir.iterdir())
    shown = json.dumps(proxy.plane.metrics.snapshot()) + caplog.text
    assert secret.encode() not in spool and "4111" not in shown and b"4111" not in spool
    assert frames[0].head["task"].startswith("pay-with-CARD"), "tasks that differ in a secret are one"
    assert frames[0].head["episode"] == frames[2].head["episode"] != frames[3].head["episode"], "runs stay apart"
    assert frames[0].head["tags"]["episode-text"] == "run of CARD"
