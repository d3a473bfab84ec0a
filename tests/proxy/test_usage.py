from __future__ import annotations

import json

import pytest

from slipstream.shared.usage import tokens_of
from slipstream_proxy.dialects.gemini import GeminiTranslator
from slipstream_proxy.dialects.messages import MessagesTranslator
from slipstream_proxy.dialects.responses import ResponsesTranslator
from slipstream_proxy.usage import usage_of

ODD = (
    {"prompt_tokens": None},
    {"prompt_tokens": "4", "completion_tokens": [1]},
    {"prompt_tokens": 1e30},
    [4],
    "4",
    True,
)


@pytest.mark.parametrize(
    "reply, counts",
    [
        ({"usage": {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}}, (4, 8)),
        ({"usage": {"input_tokens": 4, "output_tokens": 8}}, (4, 8)),
        ({"prompt_token_ids": [1, 2, 3], "choices": [{"token_ids": [5]}, {"token_ids": [6, 7]}]}, (3, 3)),
        ({"choices": [{"message": {"content": '"prompt_tokens": 99, "token_ids": [1, 2]'}}]}, (None, None)),
        ({"usage": {"prompt_tokens": 4}, "choices": [{"token_ids": []}]}, (4, None)),
        ({"usage": {"prompt_tokens": 2**31 - 1, "completion_tokens": 2**31}}, (2**31 - 1, None)),
        ({"usage": {"prompt_tokens": 10**30, "completion_tokens": -4}}, (None, None)),
        ({"usage": {"prompt_tokens": 4.5, "completion_tokens": "4"}}, (None, None)),
        ({"usage": {"prompt_tokens": float("nan"), "completion_tokens": True}}, (None, None)),
        ({"usage": {"prompt_tokens": 10**4000, "completion_tokens": 8}}, (None, 8)),
        ({}, (None, None)),
    ],
)
def test_counts(reply, counts):
    assert usage_of(json.dumps(reply).encode()) == counts
    assert usage_of(json.dumps(reply, separators=(",", ":")).encode()) == counts


def test_a_stream_says_it_again():
    events = [{"choices": [{"token_ids": [n]}]} for n in range(3)] + [
        {"usage": {"prompt_tokens": 4, "completion_tokens": 3}}
    ]
    assert usage_of(b"".join(b"data: %b\n\n" % json.dumps(e).encode() for e in events)) == (4, 3)
    assert usage_of(b"".join(b"data: %b\n\n" % json.dumps(e).encode() for e in events[:-1])) == (None, 3)


@pytest.mark.parametrize("usage", ODD)
@pytest.mark.parametrize("translator", [GeminiTranslator, MessagesTranslator, ResponsesTranslator])
def test_a_usage_of_any_shape_costs_no_reply(translator, usage):
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    reply = {"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    asked = {"model": "m", "messages": [], "input": "x"}
    assert b"hi" in translator(asked).whole(json.dumps(reply).encode())
    assert tokens_of(reply, "completion_tokens") == 0
