from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dialects import ALL, CHAT, head

from slipstream_proxy.dialects import BY_NAME, base, of_path
from slipstream_proxy.dialects.base import put_behind, stream_objects
from slipstream_proxy.dialects.chat import Chat


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(BY_NAME)),
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "message",
                        "delta",
                        "logprobs",
                        "content",
                        "messages",
                        "token_ids",
                        "usage",
                        "type",
                        "index",
                    ]
                ),
                x,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(lambda v: json.dumps(v).encode()),
    st.booleans(),
)
def test_rubbish_never_raises(name, rubbish, stream):
    dialect = BY_NAME[name]
    changes = head(dialect=name, stream=stream)
    dialect.parse(b"{}", rubbish, changes)
    dialect.parse(rubbish, b"", changes)
    dialect.parse(b"{}", b"data: " + rubbish + b"\n\n", changes)
    dialect.whole(rubbish, ALL)
    dialect.event(b"data: " + rubbish + b"\n\n", ALL)
    dialect.said(rubbish, stream=stream)
    try:
        body = json.loads(rubbish)
    except ValueError:
        return
    if isinstance(body, dict):
        dialect.turn(body)
        dialect.inject(body)


def test_a_streams_text_grows_in_time_that_grows_with_it():
    """Of a quadratic one, four times the parts would take sixteen times as long."""

    def seconds(parts: int) -> float:
        message = {"content": None}
        began = time.process_time()
        for _ in range(parts):
            put_behind(message, "content", "0123456789")
        assert message == {"content": "0123456789" * parts}
        return time.process_time() - began

    seconds(1000)
    assert min(seconds(400_000) for _ in range(3)) < 9 * min(seconds(100_000) for _ in range(3))


def test_only_text_is_put_behind_text():
    for before in (["a"], {"a": 1}, 3):
        message = {"content": before}
        with pytest.raises(TypeError):
            put_behind(message, "content", "b")
        assert message == {"content": before}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=20), max_size=20), st.integers(1, 40), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]))
def test_a_stream_is_read_alike_in_whatever_pieces(texts, size, blank):
    stream = "".join(f"data: {json.dumps({'t': text})}{blank}" for text in texts).encode()
    whole, base._PIECE = base._PIECE, size
    try:
        assert [e["t"] for e in stream_objects(stream)] == texts
    finally:
        base._PIECE = whole


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_what_the_engine_will_refuse_is_not_changed(name):
    odd = {"messages": [], "prompt": "x", "return_token_ids": "maybe"}
    assert BY_NAME[name].inject(dict(odd)).body["return_token_ids"] == "maybe"
    assert CHAT.inject({"model": "m"}).body == {"model": "m"}  # the engine's error counts the fields


def test_an_address_that_says_more_than_one_path_is_of_the_format_that_knows_it(monkeypatch):
    class Deep(Chat):
        name, paths = "deep", r"/deep/[^/]+:ask"

    monkeypatch.setitem(BY_NAME, "deep", Deep())
    assert of_path("/deep/m:ask") is BY_NAME["deep"]
    assert of_path("/deep/m:tell") is None and of_path("/deep") is None
