"""Items of OpenAI's Responses."""

from __future__ import annotations

from typing import Any

from slipstream_chat.inputs import messages_of, of_items
from slipstream_chat.report import Place, Report


def test_one_go_of_the_model_is_one_message():
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "ls", "arguments": ""},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "raw"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "custom_tool_call_output", "call_id": "b", "output": '{"output": "y", "metadata": {}}'},
        {"type": "web_search_call", "id": "w"},
    ]
    place = Place(Report(), "f:1")
    found: Any = of_items(items, place)
    _, said, first, second = found
    assert (said["content"], said["reasoning_content"]) == ("I look.", "hm")
    assert [c["function"]["arguments"] for c in said["tool_calls"]] == ["{}", '{"input": "raw"}']
    assert (first["content"], second["content"]) == ("x", "y")
    assert [what for what, _ in place.report.dropped] == ["item web_search_call"]


def test_a_reply_whose_content_is_items_keeps_what_it_says():
    """As the proxy records one of the engine's own route."""
    items = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}]
    place = Place(Report(), "f:1")
    found: Any = messages_of([{"role": "assistant", "content": items}], "assistant", place)
    assert [m["content"] for m in found] == ["I look."] and not place.report.dropped
