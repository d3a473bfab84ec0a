"""Values of files that others wrote."""

from __future__ import annotations

from typing import Any

from slipstream_chat.values import in_order, nested, parsed, tool_call, whole


def test_flat_names_become_objects():
    assert nested({"a.0.b": 1, "a.0.c": '{"d": 2}', "a.0.content": "[1]"}) == {
        "a": {"0": {"b": 1, "c": {"d": 2}, "content": "[1]"}}
    }
    assert in_order({"10": {"x": 2}, "9": {"x": 1}}) == [{"x": 1}, {"x": 2}]


def test_json_in_texts():
    assert parsed(' {"a": 1}') == {"a": 1} and parsed("[oops") == "[oops" and parsed("1") == "1"
    assert parsed("[" * 200_000) == "[" * 200_000


def test_counts_and_calls():
    assert [whole(v) for v in (3, "4", 2.0, True, -1, "x", None, 1e300)] == [3, 4, 2, None, None, None, None, None]
    made: Any = tool_call(None, "ls", "")
    assert made["function"]["arguments"] == "{}"
    assert "id" not in tool_call(None, "ls", None)
