from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.fake_engine import dump, sse

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import Hide, dumps, loads
from slipstream_proxy.dialects.sampling import sampling_of, untrainable
from slipstream_proxy.records import CallHead

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


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_what_the_engine_will_refuse_is_not_changed(name):
    odd = {"messages": [], "prompt": "x", "return_token_ids": "maybe"}
    assert BY_NAME[name].inject(dict(odd)).body["return_token_ids"] == "maybe"
    assert CHAT.inject({"model": "m"}).body == {"model": "m"}  # the engine's error counts the fields


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_stay_what_they_are(value):
    text = b'{"a":%b,"b":0.1}' % value.encode()
    assert dumps(loads(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.lists(st.text(max_size=8), max_size=4))
def test_cutting_by_bytes_is_cutting_by_json(text, tokens):
    """Whatever stands in contents and tokens, ids and log-probabilities become null and all else stays as it was."""
    hostile = ['"token_ids":[1]', '"logprobs":{', ']},"finish_reason":', text, *tokens]
    content = [{"token": t, "logprob": -1.0, "bytes": [1, 2], "top_logprobs": []} for t in hostile]
    choice = {
        "index": 0,
        "message": {"content": " ".join(hostile)},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "token_ids": [1, 2],
    }
    reply = {"choices": [choice, {**choice, "index": 1}], "prompt_token_ids": [3]}
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


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, None),
        ({"temperature": 0.7}, None),
        ({"temperature": 0}, "temperature 0"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"top_k": -1}, None),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "penalties"),
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"use_beam_search": True}, "beam search"),
        ({"tool_choice": "required"}, "forced tool"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "forced tool"),
        ({"tool_choice": "auto"}, None),
        ({"response_format": {"type": "json_object"}}, "structured output"),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"regex": "a"}}, "structured output"),
        ({"temperature": "x"}, "unreadable sampling parameters"),
        ({"bad_words": ["x"]}, "restricted tokens"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"thinking_token_budget": 9}, "thinking budget"),
        ({"watermarking": True}, "watermark"),
        ({"vllm_xargs": {"a": 1}}, "engine options"),
        ({"vllm_xargs": {}}, None),
        ({"prompt_embeds": "AAAA"}, "images or other media"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "images or other media",
        ),
    ],
)
def test_what_sampling_can_be_learned_from(body, reason):
    assert untrainable(body, trust=False) == reason
    trusted = untrainable(body, trust=True)
    assert trusted == (reason if reason in ("beam search", "images or other media") else None)
    read = CHAT.parse(json.dumps(body).encode(), whole(), head())
    assert read.untrainable == reason


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        (None, 1.0),
        ("0.5", 0.5),
        (1, 1),
        (0, 0),
        (0.001, 0.01),
        ("0.001", 0.01),
        (0.01, 0.01),
        ("hot", "hot"),
        ([1], [1]),
    ],
)
def test_the_effective_sampling(asked, effective):
    assert sampling_of({"n": 2, "max_tokens": 5, "temperature": asked})["temperature"] == effective


@pytest.mark.parametrize(
    ("reply", "changes", "reason"),
    [
        (whole(), {}, None),
        (whole(ids=(1,)), {}, "logprobs do not match the token ids"),
        (whole(ids=()), {}, "no token ids"),
        (whole(logprobs=(-9999.0, -1.0)), {}, "logprob -9999"),
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


def test_messages_stream():
    events = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    reply = b"".join(b"event: %b\n" % e["type"].encode() + sse(e) for e in events)
    dialect = BY_NAME["messages"]
    read = dialect.parse(
        b'{"messages":[{"role":"user","content":"x"}],"system":"s"}',
        reply,
        head(dialect="messages", stream=True, note="n"),
    )
    assert read.choices[0].message["content"] == [
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
    ]
    assert read.untrainable == "n" and len(read.messages) == 2 and dialect.said(reply, stream=True).tool_ids == ["t1"]
    assert dialect.terminal(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_responses():
    dialect = BY_NAME["responses"]
    output = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    ]
    read = dialect.parse(
        b'{"input":"x","instructions":"s"}',
        dump({"status": "completed", "output": output}).encode(),
        head(dialect="responses", note="n"),
    )
    assert [m["role"] for m in read.messages] == ["system", "user"] and read.choices[0].message == output
    reply = b"event: response.completed\n" + sse(
        {"type": "response.completed", "response": {"status": "completed", "output": output}}
    )
    assert dialect.said(reply, stream=True).tool_ids == ["c1"]
    assert json.loads(dialect.error(400, "m", "k"))["error"]["message"] == "m"
    assert b"event: error" in dialect.error_event(502, "m", "k")
