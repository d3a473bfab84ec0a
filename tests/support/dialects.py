"""Recorded calls of the wire formats, made for tests."""

from __future__ import annotations

import json

from tests.support.fake_engine import dump

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import Hide
from slipstream_proxy.log.records import CallHead

CHAT = BY_NAME["chat"]


ALL = Hide(ids=True, logprobs=True)


def head(**changes):
    base = dict(
        id="c",
        key="-",
        episode="e",
        task=None,
        split="train",
        tags={},
        model="m",
        trained="m",
        adapter="m",
        arm="live",
        pin="local",
        dialect="chat",
        stream=False,
        at=0.0,
        seconds=1.0,
        first_byte=None,
        status=200,
        outcome="ok",
        upstream="u",
    )
    return CallHead(**{**base, **changes})


def whole(text="hi", ids=(1, 2), logprobs=(-0.5, -0.1), **choice):
    content = [
        {"token": t, "logprob": lp, "bytes": [1], "top_logprobs": []} for t, lp in zip("ab", logprobs, strict=False)
    ]
    made = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "token_ids": list(ids),
        **choice,
    }
    return dump({"id": "x", "model": "m", "choices": [made], "prompt_token_ids": [5, 6]}).encode()


def turn(*messages):
    return CHAT.turn({"messages": list(messages)})


def reply(text, tools=()):
    message = {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": t, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}} for t in tools
        ],
    }
    return CHAT.said(json.dumps({"choices": [{"index": 0, "message": message}]}).encode(), stream=False)


def user(text):
    return {"role": "user", "content": text}
