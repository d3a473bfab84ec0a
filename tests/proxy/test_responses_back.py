"""A chat reply as a response."""

from __future__ import annotations

import json

from tests.support.fake_engine import dump, sse

from slipstream_proxy.dialects.responses import RESPONSE_FIELDS, ResponsesTranslator

BODY = {"model": "m", "input": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}


def test_a_whole_response():
    made = whole({"content": "hi"}, {**BODY, "temperature": 0, "top_p": 0.5, "metadata": {"a": "b"}})
    assert (
        made["status"] == "completed"
        and made["max_output_tokens"] == 93
        and made["top_p"] == 1.0
        and made["metadata"] == {"a": "b"}
    )
    assert made["usage"]["input_tokens_details"]["cached_tokens"] == 4 and made["usage"]["total_tokens"] == 9
    assert made["tool_choice"] == "none" and made["tools"] == []
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    made = whole({"reasoning": "hm", "content": "x", "tool_calls": [call]}, {**BODY, "tools": [TOOL]}, "length")
    assert [o["type"] for o in made["output"]] == ["reasoning", "message", "function_call"]
    assert made["status"] == "incomplete" and made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made["tools"][0]["description"] is None and made["tool_choice"] == "auto"


def test_a_streamed_response():
    back = ResponsesTranslator(BODY)
    back.context = 100
    calls = [{"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": "{}"}} for i in range(2)]
    deltas = [{"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": "so"}, {}, {"tool_calls": calls}]
    made = b""
    for i, delta in enumerate(deltas):
        event = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        made += back.event(sse(event if i else {**event, "prompt_token_ids": [1, 2, 3]})) or b""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert back.event(sse({"id": "c", "model": "m", "choices": [], "usage": usage})) is None
    made += back.event(b"data: [DONE]\n\n")
    got = [json.loads(e.split("data: ")[1]) for e in made.decode().split("\n\n") if e]
    assert [e["type"].removeprefix("response.") for e in got] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [e["sequence_number"] for e in got] == list(range(len(got)))
    assert got[0]["response"]["max_output_tokens"] == 97 and got[0]["response"]["output"] == []
    assert [o["type"] for o in got[-1]["response"]["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]


def test_tools_and_calls_are_said_back_as_the_engine_does():
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for fields, name_is_last in (({}, True), ({"function": ["type", "name"], "function_call": ["name"], "arguments_done": ["name"]}, False)):  # fmt: skip
        back = ResponsesTranslator({**BODY, "tools": [TOOL]})
        assert back.fields_needed
        back.say_back(fields)
        back.context = 100
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
        made = back.event(sse({"id": "c", "model": "m", "choices": [choice]})) + back.event(b"data: [DONE]\n\n")
        got = [json.loads(e.split("data: ")[1]) for e in made.decode().split("\n\n") if e]
        known = {**RESPONSE_FIELDS, **fields}
        (tool,) = got[0]["response"]["tools"]
        (item,) = got[-1]["response"]["output"]
        assert list(tool)[: len(known["function"])] == known["function"] and list(item) == known["function_call"]
        (done,) = [e for e in got if e["type"].endswith("arguments.done")]
        assert (list(done)[-1] == "name") is name_is_last and done["name"] == "f"


def test_an_error_in_the_stream():
    back = ResponsesTranslator(BODY)
    got = back.event(b'data: {"error": {"message": "oh", "type": "x"}}\n\n')
    assert got.startswith(b"event: error\n") and b"oh" in got and back.event(b"data: [DONE]\n\n") is None


def whole(message, asked=BODY, finish="stop"):
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    choice = {"message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    back = ResponsesTranslator(asked)
    back.context = 100
    return json.loads(back.whole(dump({"id": "c", "model": "m", "choices": [choice], "usage": usage}).encode()))
