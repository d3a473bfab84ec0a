"""The completions format."""

from __future__ import annotations

import json

import pytest
from tests.support.dialects import head

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import Hide

COMPLETIONS = BY_NAME["completions"]


@pytest.mark.parametrize(
    ("body", "asked", "note"),
    [
        ({"prompt": "a"}, {"return_token_ids": True, "logprobs": 0}, None),
        ({"prompt": [1, 2]}, {"return_token_ids": True, "logprobs": 0}, None),
        ({"prompt": ["a", "b"]}, {"return_token_ids": True, "logprobs": 0}, "several prompts in one call"),
        ({"prompt": "a", "logprobs": 2}, {"return_token_ids": True, "logprobs": 2}, None),
        ({"prompt": "a", "echo": True}, {"echo": True}, "echo"),
    ],
)
def test_what_is_asked_for(body, asked, note):
    injected = COMPLETIONS.inject(dict(body))
    assert injected.body == {"prompt": body["prompt"], **asked} and injected.note == note


@pytest.mark.parametrize("spaced", [False, True])
def test_what_was_asked_for_is_hidden(spaced):
    separators = None if spaced else (",", ":")
    logprobs = {"text_offset": [0], "token_logprobs": [-0.5], "tokens": ["]}"], "top_logprobs": None}
    choice = {"index": 0, "text": "]}", "logprobs": logprobs, "finish_reason": "stop", "token_ids": [7]}
    hidden = {**choice, "logprobs": None, "token_ids": None}
    reply = json.dumps({"choices": [choice]}, separators=separators).encode()
    assert json.loads(COMPLETIONS.whole(reply, Hide(ids=True, logprobs=True))) == {"choices": [hidden]}
    event = COMPLETIONS.event(b"data: " + reply + b"\n\n", Hide(ids=True, logprobs=True))
    assert json.loads(event[6:]) == {"choices": [hidden]} and event.endswith(b"\n\n")
    assert COMPLETIONS.event(b"data: [DONE]\n\n", Hide(ids=True)) == b"data: [DONE]\n\n"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_keeps_its_text(stream):
    logprobs = {"text_offset": [0, 1], "token_logprobs": [None, -0.5], "tokens": ["a", "b"], "top_logprobs": None}
    reply = json.dumps(
        {"choices": [{"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "length"}]}
    ).encode()
    request = json.dumps({"prompt": "a", "echo": True, "logprobs": 1}).encode()
    read = COMPLETIONS.parse(
        request, b"data: " + reply + b"\n\n" if stream else reply, head(dialect="completions", stream=stream)
    )
    assert read.untrainable == "echo" and read.choices[0].message["content"] == "ab"
