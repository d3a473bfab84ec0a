"""What is heard of a stream event by event is what its whole bytes say."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.dialects.base import EventCutter, Turn
from slipstream_proxy.dialects.chat import Chat, ChatSpeech, _read_stream, add_said
from slipstream_vllm import capture

CHAT = Chat()
TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [
            " word",
            '"',
            "\\",
            '\\"',
            "\n",
            '"},"logprobs":null',
            "é",
            "\ud83d",
            "\U0001f600",
            "\x7f",
            "",
            "data: [DONE]\n\n",
        ]
    ),
)
DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, TEXTS),
    st.builds(lambda text: {"content": text}, TEXTS),
    st.builds(lambda text: {"reasoning": text}, TEXTS),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXTS),
    st.builds(
        lambda n, text: {"tool_calls": [{"index": n, "id": f"call_{n}", "function": {"name": "f", "arguments": text}}]},
        st.integers(0, 2),
        TEXTS,
    ),
    st.just({}),
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Chat events of one stream, as vLLM writes them, now and then with something odd among them."""
    packed = capture.Stream([]) if draw(st.booleans()) else None
    escaped = draw(st.booleans())
    found = []
    for delta in draw(st.lists(DELTAS, max_size=20)):
        choice: dict[str, Any] = {"index": draw(st.sampled_from([0, 0, 0, 0, 1])), "delta": delta, "logprobs": None}
        choice["finish_reason"] = draw(st.sampled_from([None, None, None, None, "stop"]))
        if draw(st.integers(0, 9)) == 0:
            choice["stop_reason"] = draw(st.sampled_from(["END", 17, None]))
        event: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}
        if draw(st.integers(0, 9)) == 0:
            event["usage"] = {"total_tokens": draw(st.integers(0, 9))}
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=escaped)
        line = f"data: {text}\n\n"
        if packed is not None:
            packed.choices.append((0, [7], [-0.5]))
            line = capture.spliced(line, packed)
        found.append(line.encode("utf-8", "surrogatepass"))
    odd = [b": ping\n\n", b"data: {\n\n", b"data: []\n\n", b'data: {"choices":[1]}\n\n', b'data: {"choices":7}\n\n']
    for strange in draw(st.lists(st.sampled_from(odd), max_size=1)):
        found.insert(draw(st.integers(0, len(found))), strange)
    return [*found, b"data: [DONE]\n\n"]


def by_all_bytes(reply: bytes) -> Turn:
    """Each event parsed and read for the record."""
    turn = Turn(has_reply=True)
    try:
        _, choices, _ = _read_stream(reply)
    except Exception:
        return turn
    for choice in choices:
        add_said(turn, choice.message, choice.stop)
    return turn


@given(streams(), st.integers(0, 2**32))
def test_it_is_what_the_whole_stream_says(events: list[bytes], seed: int) -> None:
    reply = b"".join(events)
    expected = by_all_bytes(reply)
    assert CHAT.said(reply, stream=True) == expected
    chance, cutter, speech, at = random.Random(seed), EventCutter(), CHAT.speech(), 0
    while at < len(reply):
        size = chance.randrange(1, 400)
        for event in cutter.feed(reply[at : at + size]):
            speech.hear(event)
        at += size
    assert speech.turn() == expected


def usual(text: bytes, more: bytes = b"") -> bytes:
    start = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"'
    return b'%b%b"},"logprobs":null,"finish_reason":null}]%b}\n\n' % (start, text, more)


def heard(events: list[bytes]) -> ChatSpeech:
    speech = ChatSpeech()
    for event in events:
        speech.hear(event)
    assert speech.turn() == by_all_bytes(b"".join(events))
    return speech


def parsed_of(monkeypatch, events: list[bytes]) -> int:
    """How many of these events are parsed."""
    count = 0
    read = ChatSpeech._read

    def counted(self: ChatSpeech, event: bytes) -> None:
        nonlocal count
        count += 1
        read(self, event)

    monkeypatch.setattr(ChatSpeech, "_read", counted)
    heard(events)
    return count


def test_usual_events_are_not_parsed(monkeypatch) -> None:
    assert parsed_of(monkeypatch, [usual(b" word")] * 100) == 1
    packed = capture.Stream([])
    packed.prompts.append((0, [1] * 100))
    events = []
    for i in range(100):
        packed.choices.append((0, [i], [-0.5]))
        events.append(capture.spliced(usual(b" w\xc3\xb6rd").decode(), packed).encode())
    assert parsed_of(monkeypatch, events) < 5


def test_other_events_are_parsed() -> None:
    odd = (b'\\"', b"\\\\", b"\\n", b"\\ud83d", b"\xff", b"\n", b"\t", b'","role":"x', b"\\")
    for text in odd:
        heard([usual(b"a"), usual(text), usual(b"b")])
    for more in (b',"usage":{"n":1}', b',"error":{"message":"x"}', b',"choices":[]', b',"x":'):
        heard([usual(b"a"), usual(b"b", more), usual(b"c")])
        heard([usual(b"a", more), usual(b"b", more), usual(b"c")])


def test_a_form_that_never_comes_again_is_not_looked_for_for_ever() -> None:
    events = [usual(b"a").replace(b'"id":"c"', b'"id":"c%d"' % i) for i in range(100)]
    assert heard(events)._tries == 8
