"""What of a call goes to the spool: what its episode's calls share is written once, and never says what is not so any more."""

from __future__ import annotations

import random

import pytest
from tests.support.dataplane import ASK, post

from slipstream_proxy.data.call.record import Commons
from slipstream_proxy.data.episode.running import RunningEpisode
from slipstream_proxy.data.wire.identity import Tags
from slipstream_proxy.log.records import CallHead
from slipstream_proxy.redaction import make_texts

MODELS = {"gpt-4o": {"trained": "tiny"}, "gpt-b": {"base": "other", "sampling": "trust"}}


@pytest.mark.parametrize("seed", range(6))
async def test_each_call_is_recorded_as_it_was(start, fake, seed):
    """Calls of two episodes that differ in anything a head can say."""
    rng = random.Random(seed)
    proxy = await start(models=MODELS)
    said: dict[str, tuple[str, str, dict[str, str]]] = {}
    expected = []
    for _ in range(12):
        episode = rng.choice("ab")
        task, split, tags = said.get(episode, (None, "train", {}))
        headers = {"x-slipstream-episode": episode}
        if rng.random() < 0.4:
            headers["x-slipstream-task"] = task = rng.choice(("t1", "t2"))
        if rng.random() < 0.3:
            headers["x-slipstream-split"] = split = rng.choice(("train", "eval"))
        if rng.random() < 0.3:
            value = rng.choice(("blue", "red"))
            headers["x-slipstream-tag-team"], tags = value, {**tags, "team": value}
        if rng.random() < 0.2:
            headers["x-stainless-retry-count"] = "1"
        said[episode] = task, split, tags
        more = rng.choice(({}, {"stream": True}, {"top_logprobs": 1}))
        model = rng.choice(("tiny", "gpt-4o", "gpt-b"))
        path = rng.choice(("/v1/chat/completions", "/v1/completions"))
        body = {**ASK, **more, "model": model} if "chat" in path else {"model": model, "prompt": "x"}
        status, got, _ = await post(proxy.url, body, path, headers)
        expected.append(
            {
                "id": got["x-slipstream-call"], "key": "-", "episode": episode, "task": task, "grouped": task is not None, "split": split,
                "tags": tags, "model": model, "trained": None if model == "gpt-b" else "tiny", "adapter": "other" if model == "gpt-b" else "tiny",
                "trust_sampling": model == "gpt-b", "dialect": "chat" if "chat" in path else "completions", "status": status,
                "stream": bool(more.get("stream")) and "chat" in path and status == 200, "attempt": int(headers.get("x-stainless-retry-count", 0)),
                "note": "logprobs refused" if "chat" in path and "top_logprobs" in more else None, "origin": "header",
            }
        )  # fmt: skip
    frames = await proxy.record(12)
    for frame, wanted in zip(frames, expected, strict=True):
        CallHead(**frame.head)
        assert {name: frame.head[name] for name in wanted} == wanted


def test_only_the_latest_episodes_keep_what_their_calls_share():
    commons = Commons(2)
    episodes = [RunningEpisode(("-", name), 1, Tags(), 0.0) for name in "abc"]
    for episode in episodes:
        commons.give(episode, object())  # type: ignore[arg-type]
    assert [episode.common is None for episode in episodes] == [True, False, False]
    commons.give(episodes[2], object())  # type: ignore[arg-type]
    assert [episode.common is None for episode in episodes] == [True, True, False]


def test_redaction_takes_the_ids_along():
    request, reply, note = make_texts(
        lambda r: {**r, "reply": r["reply"].replace("Bob", "X")}, b"{}", b'{"a":"Bob","token_ids":[1],"b":1}'
    )
    assert (request, reply, note) == (b"{}", b'{"a":"X","token_ids":null,"b":1}', "redacted")
    assert make_texts(lambda r: r, b"{}", b'{"token_ids":[1]}') == (b"{}", b'{"token_ids":[1]}', None)
    assert make_texts(lambda r: 1 / 0, b"{1}", b"x") == (b"{}", b"", "redaction failed")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        "x",
        {},
        {"request": "a"},
        {"request": 5, "reply": "x"},
        {"request": "a", "reply": b"x"},
        {"request": "a", "reply": "x", "tag.t": 1},
    ],
)
def test_a_redaction_that_gives_no_texts_stores_none(answer):
    tags = {"t": "v"}
    assert make_texts(lambda _: answer, b"{1}", b"x", tags) == (b"{}", b"", "redaction failed") and tags == {}


def test_redaction_of_tags_and_of_odd_bytes():
    tags = {"user": "alice", "team": "a"}
    found = make_texts(lambda r: {k: v.replace("alice", "X") for k, v in r.items()}, b"{\xff}", b"x", tags)
    assert found == (b"{\xff}", b"x", None) and tags == {"user": "X", "team": "a"}
    assert make_texts(lambda r: {"request": r["request"] + "\ud800", "reply": r["reply"]}, b"a", b"x", tags)[0] == b"a?"
    assert tags == {"user": "X", "team": "a"}

    def leave(_):
        raise SystemExit(3)

    assert make_texts(leave, b"a", b"x") == (b"{}", b"", "redaction failed")
