from __future__ import annotations

from slipstream_proxy.dialects.base import Turn
from slipstream_proxy.dialects.chat import add_delta, add_said, canonical, quoted_ids, stop_of, text_of, tool_ids
from slipstream_proxy.dialects.tool_calls import CallPlaces


def test_a_message_grows_by_its_deltas() -> None:
    message: dict = {"role": "assistant", "content": None}
    places = CallPlaces()
    for delta in (
        {"role": "assistant", "content": ""},
        {"content": "Let me "},
        {"content": "look."},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "find", "arguments": '{"q"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    ):
        add_delta(message, delta, places)
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q":1}'}}
    assert message == {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    assert tool_ids(message) == ["call_1"]


def test_parts_of_a_list_and_of_an_object_grow_too() -> None:
    message: dict = {"role": "assistant", "content": None}
    for delta in (
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "4111-"}]}], "audio": {"id": "a"}},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "1111"}]}]},
        {"reasoning_details": [{"index": 1, "type": "t", "text": "x"}, {"index": 0, "type": "t", "text": "a"}]},
        {"reasoning_details": [{"index": 1, "type": "t", "text": "y", "signature": None}]},
        {"content": "So", "function_call": {"name": "f", "arguments": '{"a"'}, "audio": {"id": "a", "data": "AA"}},
        {"content": ".", "function_call": {"arguments": ":1}"}, "audio": {"data": "BB"}},
    ):
        add_delta(message, delta, CallPlaces())
    assert message == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "4111-1111"}]},
            {"type": "text", "text": "So."},
        ],
        "audio": {"id": "a", "data": "AABB"},
        "reasoning_details": [
            {"index": 1, "type": "t", "text": "xy", "signature": None},
            {"index": 0, "type": "t", "text": "a"},
        ],
        "function_call": {"name": "f", "arguments": '{"a":1}'},
    }


def test_what_clients_change_around_a_message_does_not_matter() -> None:
    said = {"role": "assistant", "content": "a"}
    assert canonical(said) == canonical({**said, "content": [{"type": "text", "text": "a"}], "refusal": None})
    assert canonical(said) != canonical({**said, "content": "b"})
    assert text_of(None) == "" and text_of([{"type": "image"}]) == [{"type": "image"}]


def test_a_stop_string_may_be_put_back() -> None:
    turn = Turn()
    add_said(turn, {"role": "assistant", "content": "a"}, stop_of({"stop_reason": "END"}))
    assert turn.messages == [canonical({"role": "assistant", "content": text}) for text in ("a", "aEND")]
    assert stop_of({"stop_reason": 17}) == ""


def test_ids_of_calls_in_a_text() -> None:
    assert quoted_ids({"content": "called call_12345678 before"}) == ["call_12345678"]
