from __future__ import annotations

import json

import pytest

from slipstream_proxy.usage import usage_of


@pytest.mark.parametrize(
    "reply, counts",
    [
        ({"usage": {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}}, (4, 8)),
        ({"usage": {"input_tokens": 4, "output_tokens": 8}}, (4, 8)),
        ({"prompt_token_ids": [1, 2, 3], "choices": [{"token_ids": [5]}, {"token_ids": [6, 7]}]}, (3, 3)),
        ({"choices": [{"message": {"content": '"prompt_tokens": 99, "token_ids": [1, 2]'}}]}, (None, None)),
        ({"usage": {"prompt_tokens": 4}, "choices": [{"token_ids": []}]}, (4, None)),
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
