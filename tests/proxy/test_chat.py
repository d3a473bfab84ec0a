"""The chat format: what is asked for, hidden and read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dialects import ALL, CHAT, head
from tests.support.fake_engine import dump, sse

from slipstream_proxy.dialects.base import Hide, loads


@pytest.mark.parametrize(
    ("body", "hide", "sent"),
    [
        ({}, ALL, {"return_token_ids": True, "logprobs": True}),
        ({"logprobs": True}, Hide(ids=True), {"return_token_ids": True, "logprobs": True}),
        ({"logprobs": True, "return_token_ids": True}, Hide(), {"return_token_ids": True, "logprobs": True}),
        ({"top_logprobs": 3}, Hide(ids=True), {"top_logprobs": 3, "return_token_ids": True}),
        (
            {"include_reasoning": False},
            Hide(ids=True, logprobs=True, reasoning=True),
            {"include_reasoning": True, "return_token_ids": True, "logprobs": True},
        ),
        ({"logprobs": "x"}, Hide(ids=True), {"logprobs": "x", "return_token_ids": True}),
        ({"return_token_ids": "x"}, Hide(logprobs=True), {"return_token_ids": "x", "logprobs": True}),
    ],
)
def test_chat_inject(body, hide, sent):
    made = CHAT.inject({"messages": [], **body})
    assert (made.hide, made.body) == (hide, {"messages": [], **sent})


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": False},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        {"logprobs": True},
        {"return_token_ids": True},
    ],
    ids="-".join,
)
def test_reasoning_stays_hidden_where_showing_it_would_change_the_reply(more):
    made = CHAT.inject({"messages": [], "include_reasoning": False, **more})
    assert made.body["include_reasoning"] is False and not made.hide.reasoning
    assert made.note and made.note.startswith("hidden reasoning")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.lists(st.text(max_size=8), max_size=4))
def test_cutting_by_bytes_is_cutting_by_json(text, tokens):
    """Whatever stands in contents and tokens, ids and log-probabilities become null and all else stays as it was."""
    hostile = ['"token_ids":[1]', '"logprobs":{', ']},"finish_reason":', text, *tokens]
    content = [{"token": t, "logprob": -1.0, "bytes": [1, 2], "top_logprobs": []} for t in hostile]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"content": " ".join(hostile)},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "token_ids": [1, 2],
    }
    reply: dict[str, Any] = {"choices": [choice, {**choice, "index": 1}], "prompt_token_ids": [3]}
    bare = {"choices": [{**c, "logprobs": None, "token_ids": None} for c in reply["choices"]], "prompt_token_ids": None}
    assert CHAT.whole(dump(reply).encode(), ALL) == dump(bare).encode()
    assert loads(CHAT.whole(json.dumps(reply).encode(), ALL)) == bare
    event = {
        "choices": [
            {
                "index": 0,
                "delta": {"content": text},
                "logprobs": {"content": content},
                "finish_reason": None,
                "token_ids": [1],
            }
        ]
    }
    shown = {"choices": [{**event["choices"][0], "logprobs": None, "token_ids": None}]}
    assert CHAT.event(sse(event), ALL) == sse(shown)


TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(['"},"logprobs":{', "\\", "f", "]}]}\n\n", ""]))


@st.composite
def sent_events(draw: st.DrawFn) -> bytes:
    """An event as vLLM writes it, mostly of the usual form."""
    text, token = draw(TEXTS), draw(TEXTS)
    said = draw(st.sampled_from(["content", "content", "content", "reasoning", "refusal"]))
    content = [{"token": token, "logprob": -0.5, "bytes": [1, 2], "top_logprobs": []}]
    choice: dict[str, Any] = {
        "index": 0,
        "delta": draw(st.sampled_from([{said: text}, {said: text}, {}, {"role": "assistant", "content": ""}])),
        "logprobs": draw(st.sampled_from([{"content": content}, {"content": content}, None])),
        "finish_reason": draw(st.sampled_from([None, None, None, "stop"])),
        "token_ids": draw(st.sampled_from([[7], [7, 8], [7], None])),
    }
    choices = [choice, {**choice, "index": 1}] if draw(st.integers(0, 5)) == 0 else [choice]
    more: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {}, {"prompt_token_ids": [1]}, {"usage": {"total_tokens": 3}}])
    )
    event = {"id": "c", "model": "m", "choices": choices, **more}
    return sse(event) if draw(st.integers(0, 9)) else b"data: " + json.dumps(event).encode() + b"\n\n"


@settings(max_examples=100, deadline=None)
@given(st.lists(sent_events(), max_size=12))
def test_a_stream_hides_of_each_event_what_the_event_alone_would(events):
    hide = CHAT.inject({"messages": []}).hide
    hider = CHAT.hider(hide)
    assert [hider.event(event) for event in events] == [CHAT.event(event, hide) for event in events]


def test_other_key_orders_are_cut_by_json():
    reply = {"choices": [{"finish_reason": "stop", "logprobs": {"content": []}, "token_ids": [1], "message": {}}]}
    assert loads(CHAT.whole(dump(reply).encode(), ALL)) == {
        "choices": [{"finish_reason": "stop", "logprobs": None, "token_ids": None, "message": {}}]
    }


def test_events_without_content_are_dropped_only_where_we_made_them():
    empty = sse(
        {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": []}, "finish_reason": None, "token_ids": [1]}]}
    )
    assert CHAT.event(empty, ALL) is None
    assert CHAT.event(empty, Hide(ids=True)) is not None  # the client asked for logprobs: the engine sends these to it
    last = sse(
        {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": []}, "finish_reason": "stop", "token_ids": [1]}]}
    )
    assert CHAT.event(last, ALL) is not None
    assert CHAT.event(b"data: [DONE]\n\n", ALL) == b"data: [DONE]\n\n" and CHAT.terminal(b"data: [DONE]\n\n")


def test_hidden_reasoning():
    hide = Hide(ids=True, logprobs=True, reasoning=True)
    reply = {
        "choices": [
            {
                "message": {"content": "a", "reasoning": "because"},
                "logprobs": {"content": []},
                "finish_reason": "stop",
                "token_ids": [1],
            }
        ]
    }
    assert loads(CHAT.whole(dump(reply).encode(), hide)) == {
        "choices": [
            {
                "message": {"content": "a", "reasoning": None},
                "logprobs": None,
                "finish_reason": "stop",
                "token_ids": None,
            }
        ]
    }

    def event(delta, finish=None):
        shown = CHAT.event(
            sse(
                {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": [1]}]}
            ),
            hide,
        )
        return None if shown is None else loads(shown[6:])["choices"][0]

    assert event({"reasoning": "because"}) is None
    assert event({"content": "a"})["delta"] == {"content": "a", "reasoning": None}
    assert event({"reasoning": "x"}, "stop")["delta"] == {}
    assert event({"role": "assistant", "content": ""})["token_ids"] is None


def test_streamed_tool_calls_are_put_together():
    parts = [
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    reply = b"".join(
        sse(
            {
                "choices": [{"index": 0, "delta": d, "token_ids": [i], "logprobs": {"content": [{"logprob": -0.5}]}}],
                "prompt_token_ids": [9] if not i else None,
            }
        )
        for i, d in enumerate(parts)
    )
    read = CHAT.parse(b'{"messages":[],"tools":[{"type":"function"}]}', reply + b"data: [DONE]\n\n", head(stream=True))
    (choice,) = read.choices
    assert choice.message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert (
        choice.message["reasoning"] == "hm"
        and read.prompt_ids == [9]
        and choice.completion_ids == list(range(6))
        and read.untrainable is None
    )
