"""The plugin's member: the client's bytes are those without it, and what it holds is what was sampled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.packed_engine import entry_of

from slipstream_proxy.dialects.base import stream_objects
from slipstream_proxy.dialects.chat import Chat
from slipstream_proxy.dialects.completions import Completions
from slipstream_proxy.dialects.messages import Messages
from slipstream_proxy.dialects.responses import Responses
from slipstream_proxy.dialects.token_arrays import (
    BASE64_UNIT_IDS,
    CAPTURE_FIELD,
    PACKED_FIELD,
    UNIT_TEXT,
    Sampled,
    cut,
    cut_event,
    null_members,
    prompt_length,
    prompt_part,
)
from slipstream_vllm import capture, packing

TEXT = st.text(max_size=40) | st.sampled_from(['","slipstream":{"v":1}', ',"slipstream":{"v":', "}", "data: [DONE]"])
TOKENS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 0, width=32)), max_size=20)


def test_both_sides_speak_of_the_same_member() -> None:
    assert (CAPTURE_FIELD, PACKED_FIELD) == (capture.CAPTURE_FIELD, packing.PACKED_FIELD)


def packed_of(tokens: list[tuple[int, float]], prompt: list[int], index: int = 0) -> packing.Packed:
    return packing.pack([(0, prompt)], [(index, [t for t, _ in tokens], [x for _, x in tokens])])


@given(TEXT, TOKENS)
def test_a_whole_reply_without_the_member_is_the_engines_own(text: str, tokens: list[tuple[int, float]]) -> None:
    bare = {"id": "x", "choices": [{"index": 0, "message": {"content": text}}]}
    plain = json.dumps(bare, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    with_member = {**bare, PACKED_FIELD: packed_of(tokens, [1, 2])}
    sent = json.dumps(with_member, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert cut(sent) == plain
    assert cut(plain) == plain


@given(TEXT, TOKENS)
def test_an_event_without_the_member_is_the_engines_own(text: str, tokens: list[tuple[int, float]]) -> None:
    plain = "data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, separators=(",", ":")) + "\n\n"
    stream = capture.Stream()
    stream.choices.append((0, [t for t, _ in tokens], [x for _, x in tokens]))
    assert cut_event(capture.spliced(plain, stream).encode()) == plain.encode()
    assert cut_event(plain.encode()) == plain.encode()


def test_an_event_with_nothing_else_is_not_sent() -> None:
    stream = capture.Stream()
    stream.choices.append((0, [1], [-1.0]))
    alone, done, _ = capture.spliced("data: [DONE]\n\n", stream).encode().split(b"\n\n")
    assert cut_event(alone + b"\n\n") is None
    assert cut_event(done + b"\n\n") == b"data: [DONE]\n\n"


@given(st.lists(TOKENS, min_size=1, max_size=6), st.lists(st.integers(0, 2**31 - 1), max_size=9))
def test_what_a_stream_held_is_read_back(steps: list[list[tuple[int, float]]], prompt: list[int]) -> None:
    stream = capture.Stream()
    stream.prompts.append((0, prompt))
    events = []
    for step in steps:
        for index in (0, 1):
            stream.choices.append((index, [t for t, _ in step], [x for _, x in step]))
        events.append(capture.spliced('data: {"choices":[]}\n\n', stream))
    sampled = Sampled()
    for read in stream_objects("".join(events).encode()):
        sampled.add(read)
    assert sampled.prompt == prompt
    for index in (0, 1):
        assert sampled.ids[index] == [t for step in steps for t, _ in step]
        assert sampled.logprobs[index] == [x for step in steps for _, x in step]


@pytest.mark.parametrize("spaced", [False, True])
def test_redaction_leaves_no_ids(spaced: bool) -> None:
    text = json.dumps({"a": 1, PACKED_FIELD: packed_of([(7, -1.0)], [3])}, separators=None if spaced else (",", ":"))
    assert json.loads(null_members(text.encode())) == {"a": 1, PACKED_FIELD: None}


CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Chat(), CHAT_BODY),
        (Chat(), {**CHAT_BODY, "logprobs": True, "top_logprobs": 2, "include_reasoning": False}),
        (Completions(), {"model": "m", "prompt": "hi"}),
        (Messages(), {**CHAT_BODY, "max_tokens": 5}),
        (Responses(), {"model": "m", "input": "hi"}),
    ],
)
def test_one_member_asks_and_the_rest_stays_as_it_was(dialect, body) -> None:
    plain = dialect.inject(json.loads(json.dumps(body)))
    packed = dialect.inject(json.loads(json.dumps(body)), packed=True)
    assert packed.body[CAPTURE_FIELD] == 1
    assert packed.hide.packed
    assert packed.note is None
    assert (packed.back is None) == (plain.back is None)
    for name in ("return_token_ids", "logprobs", "include_reasoning"):
        assert packed.body.get(name) == body.get(name)


def test_an_echo_is_not_asked_for() -> None:
    made = Completions().inject({"model": "m", "prompt": "hi", "echo": True}, packed=True)
    assert CAPTURE_FIELD not in made.body
    assert made.note == "echo"


def test_a_member_that_is_damaged_makes_the_call_unreadable() -> None:
    with pytest.raises(ValueError):
        Sampled().add({PACKED_FIELD: {"v": 1, "c": [[0, "!!", "!!"]]}})


def test_a_translated_stream_knows_how_long_the_prompt_was() -> None:
    for length in range(1, 9):
        assert prompt_length({PACKED_FIELD: packed_of([(7, -1.0)], list(range(length)))}) == length
    *_, count, digest = entry_of(list(range(200)))
    for known, expected in (([], 0), ([(count, digest)], count)):
        entry = packing.pack([(0, list(range(200)))], [], known)
        assert entry["p"][0][2] == expected  # type: ignore[index]
        assert prompt_length({PACKED_FIELD: entry}) == 200
    assert prompt_length({PACKED_FIELD: {"v": 1}}) == prompt_length({}) == 0


@pytest.mark.parametrize("dialect", [Messages(), Responses()])
def test_a_translated_stream_leaves_out_an_event_with_nothing_else(dialect) -> None:
    body = {
        "model": "m",
        "input": "hi",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "stream": True,
    }
    back = dialect.inject(body, packed=True).back
    assert back.event(b'data: {"slipstream":{"v":1,"c":[]}}\n\n') is None


@given(TEXT, TOKENS, st.lists(st.integers(0, 9), min_size=64, max_size=120), st.booleans())
def test_a_reply_that_left_out_ids_becomes_the_one_with_all_of_them(
    text: str, tokens: list[tuple[int, float]], prompt: list[int], stream: bool
) -> None:
    """Whatever the model says, and wherever the part stands."""
    choice = (0, [t for t, _ in tokens], [x for _, x in tokens])

    def reply(known: list[packing.Known] | None) -> bytes:
        packed = packing.pack([(0, prompt)], [choice], known)
        said = json.dumps({"choices": [{"delta": {"content": text}}], PACKED_FIELD: packed}, separators=(",", ":"))
        return f"data: {said}\n\ndata: [DONE]\n\n".encode() if stream else said.encode()

    *_, count, digest = entry_of(prompt)
    sent = reply([(count, digest)])
    part = prompt_part(sent, stream=stream)
    assert part is not None
    assert (part.shared, part.count, part.digest) == (count, count, digest)
    known = packing.encode_ids(prompt)[: count // BASE64_UNIT_IDS * UNIT_TEXT].encode()
    assert part.whole(sent, known) == reply(None)
    assert prompt_part(reply(None), stream=stream) is None


def test_the_plugin_and_the_proxy_cut_base64_alike() -> None:
    assert len(packing.encode_ids([1] * BASE64_UNIT_IDS)) == UNIT_TEXT and packing._UNIT == BASE64_UNIT_IDS
