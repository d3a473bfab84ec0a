"""What is the same in two spellings, and which answer is of which call."""

from __future__ import annotations

from typing import Any

from tests.support.logs import ASK, USE

from slipstream_chat.messages import plain_key, with_ids


def test_spellings_of_one_message_have_one_key():
    other: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "z", "type": "function", "function": {"name": "ls", "arguments": "{ }"}}],
    }
    assert plain_key(USE) == plain_key(other)
    assert plain_key(ASK) == plain_key({"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "x"})
    assert plain_key(ASK) != plain_key({"role": "system", "content": "hi"})


def test_calls_and_answers_without_ids_are_paired():
    calls = [{"type": "function", "function": {"name": n, "arguments": "{}"}} for n in ("a", "b")]
    made: Any = with_ids(
        [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "name": "b", "content": ""},
            {"role": "tool", "content": ""},
        ]
    )
    assert [c["id"] for c in made[0]["tool_calls"]] == ["call_0_0", "call_0_1"]
    assert [m["tool_call_id"] for m in made[1:]] == ["call_0_1", "call_0_0"]
