"""What is read of a recorded call."""

from __future__ import annotations

import pytest
from tests.support.dialects import CHAT, head, whole
from tests.support.fake_engine import sse

from slipstream_proxy.dialects import BY_NAME


@pytest.mark.parametrize(
    ("reply", "changes", "reason"),
    [
        (whole(), {}, None),
        (whole(ids=(1,)), {}, "logprobs do not match the token ids"),
        (whole(ids=()), {}, "no token ids"),
        (whole(logprobs=(-9999.0, -1.0)), {}, "logprob -9999"),
        (whole(logprobs=(float("nan"), -1.0)), {}, "logprob is no number"),
        (whole(logprobs=(False, -1.0)), {}, "logprob is no number"),
        (whole(logprobs=(0.5, -1.0)), {}, "logprob above 0"),
        (whole(logprobs=(float("inf"), -1.0)), {}, "logprob above 0"),
        (whole(logprobs=(0.0, 1e-7)), {}, None),  # as far as engines round
        (whole(ids=(-1, 2)), {}, "a token id that is none"),
        (whole(ids=(True, 2)), {}, "a token id that is none"),
        (whole(ids=(2**40, 2)), {}, "a token id that is none"),
        (whole(ids=("a", 2)), {}, "no token ids"),
        (whole(), {"outcome": "aborted"}, "aborted"),
        (whole(), {"outcome": "error"}, "error"),
        (b"{", {}, "unreadable"),
        (b"", {"outcome": "error", "status": 503}, "error"),
        (b"[]", {}, "no token ids"),
        (b"3", {}, "no token ids"),
        (whole(finish_reason="abort"), {}, "error"),
        (whole(finish_reason="length"), {}, None),
        (whole(), {"external": True}, "external upstream"),
        (whole(), {"note": "redacted"}, "redacted"),
    ],
)
def test_what_replies_can_be_learned_from(reply, changes, reason):
    assert CHAT.parse(b'{"messages":[]}', reply, head(**changes)).untrainable == reason


def test_an_aborted_reply_that_is_cut_off_keeps_its_request():
    read = CHAT.parse(b'{"messages":[{"role":"user","content":"x"}]}', b'{"choi', head(outcome="aborted"))
    assert read.untrainable == "aborted" and read.messages and not read.choices


@pytest.mark.parametrize("name", ["chat", "completions"])
@pytest.mark.parametrize("failed", [False, True])
def test_a_stream_in_which_the_engine_failed_is_not_learned_from(name, failed):
    """vLLM says an error in the stream, and ends it as any other."""
    ids = {"prompt_token_ids": [1]}
    logprobs = {"content": [{"token": "a", "logprob": -0.5}]}
    token = {"delta": {"content": "a"}, "token_ids": [2], "logprobs": logprobs}
    if name == "completions":
        token = {"text": "a", "token_ids": [2], "logprobs": {"token_logprobs": [-0.5]}, **ids}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    last = {"error": {"message": "out of memory"}} if failed else end
    reply = sse({"choices": [{"index": 0, **token}], **ids}) + sse(last) + b"data: [DONE]\n\n"
    read = BY_NAME[name].parse(b'{"messages":[]}', reply, head(stream=True, dialect=name))
    assert read.choices[0].completion_ids == [2] and read.untrainable == ("error" if failed else None)
    assert ("out of memory" in (read.error or "")) == failed


def test_more_choices_than_an_engine_samples_are_not_read():
    for count, read in ((16384, 16384), (16385, 0)):
        found = CHAT.parse(b'{"messages":[]}', b'{"choices":[' + b"{}," * (count - 1) + b"{}]}", head())
        assert len(found.choices) == read
    assert found.untrainable == "too many choices"
