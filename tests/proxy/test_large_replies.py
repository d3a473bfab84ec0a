"""A whole reply without what its client did not ask for."""

from __future__ import annotations

import json
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.dialects import base
from slipstream_proxy.dialects.base import nulled

texts = st.sampled_from(['token_ids":[', '"logprobs":{', '},"finish_reason":', "]", "f", "ünï", "a" * 50]) | st.text(
    max_size=9
)
ids = st.none() | st.lists(st.integers(0, 999), max_size=9)


def choice(text: str, sampled: list[int] | None, told: bool) -> dict:
    content = [{"token": text, "logprob": -0.5, "bytes": [102], "top_logprobs": []}] * 3
    said = {"index": 0, "message": {"role": "assistant", "content": text}}
    return said | {"logprobs": {"content": content} if told else None, "finish_reason": "stop", "token_ids": sampled}


replies = st.builds(
    lambda choices, prompt, spaced, cut: json.dumps(
        {"model": "m", "choices": choices, "prompt_token_ids": prompt},
        separators=(", ", ": ") if spaced else (",", ":"),
    ).encode()[:cut],
    st.lists(st.builds(choice, texts, ids, st.booleans()), max_size=4),
    ids,
    st.booleans(),
    st.none() | st.integers(0, 500),
)


def null_logprobs(text: bytes) -> bytes | None:
    """By the letter, and one key after the other."""
    spaced = b'"logprobs":{' not in text
    key, after = (b'"logprobs": {', b', "finish_reason":') if spaced else (b'"logprobs":{', b',"finish_reason":')
    at = text.find(key)
    while at >= 0:
        end = text.find(after, at)
        if end < 0 or text[end - 1 : end] != b"}":
            return None
        text = text[: at + len(key) - 1] + b"null" + text[end:]
        at = text.find(key, at)
    return text


def null_ids(text: bytes) -> bytes:
    key = b'token_ids":[' if b'token_ids":[' in text else b'token_ids": ['
    return re.sub(re.escape(key) + rb"[^\]]*\]", key[:-1] + b"null", text)


@given(replies, st.booleans(), st.booleans())
def test_a_large_one_loses_the_same(reply, ids, logprobs):
    one_by_one = null_logprobs(reply) if logprobs else reply
    expected = null_ids(one_by_one) if ids and one_by_one is not None else one_by_one
    assert nulled(reply, ids=ids, logprobs=logprobs) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "LARGE_REPLY_BYTES", -1)
        assert nulled(reply, ids=ids, logprobs=logprobs) == expected


def test_a_large_one_is_copied_once():
    large = choice("short", [1, 2], told=True) | {"text": "x" * 2**25}
    text = json.dumps({"choices": [large], "prompt_token_ids": [1]}, separators=(",", ":"))
    reply = text.encode()
    tracemalloc.start()
    cut = nulled(reply, ids=True, logprobs=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert b'"token_ids":null' in cut and len(cut) > 2**25 and peak < 1.3 * len(reply)


def test_one_without_any_is_not_copied(monkeypatch):
    monkeypatch.setattr(base, "LARGE_REPLY_BYTES", 10)
    reply = b'{"choices":[{"logprobs":null,"finish_reason":"stop","token_ids":null}]}'
    assert nulled(reply, ids=True, logprobs=True) is reply


def test_keys_in_another_order_are_left_to_json(monkeypatch):
    monkeypatch.setattr(base, "LARGE_REPLY_BYTES", 10)
    reply = b'{"choices":[{"finish_reason":"stop","logprobs":{"content":[]}}]}'
    assert nulled(reply, ids=True, logprobs=True) is None
