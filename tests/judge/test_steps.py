from __future__ import annotations

from slipstream.contract import CallRecord
from slipstream_judge.text.transcript import (
    Reader,
    call_steps,
    canonical,
    clean,
    plain,
    plain_prompt,
    replies,
    tool_lines,
)


def call(messages, reply=(), **more):
    fields = {
        "id": "c",
        "episode": "e",
        "number": 0,
        "at": 0.0,
        "seconds": 0.0,
        "dialect": "chat",
        "model": "",
        "adapter": None,
    }
    fields |= {"status": 200, "outcome": "ok", "trainable": True}
    return CallRecord.model_validate(fields | {"messages": list(messages), "reply": list(reply)} | more)


def said(messages):
    reader = Reader()
    reader.read(messages)
    return [(s.kind, s.text) for s in reader.end()]


def test_chat_tool_calls_are_numbered_and_their_ids_do_not_matter():
    def talk(a, b):
        return said(
            [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hi"},
                        {"type": "image_url", "image_url": {"url": "data:xyz"}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": "Looking.",
                    "tool_calls": [
                        {"id": a, "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}},
                        {"id": b, "type": "function", "function": {"name": "g", "arguments": "not json"}},
                    ],
                },
                {"role": "tool", "tool_call_id": b, "content": "of g"},
                {"role": "tool", "tool_call_id": a, "content": ""},
            ]
        )

    assert (
        talk("x", "y")
        == talk("p", "q")
        == [
            ("system", "Be brief."),
            ("user", "Hi\n(image_url, not shown)"),
            ("assistant", "Looking."),
            ("assistant calls tool", 'f #1 {"a": 2, "b": 1}'),
            ("assistant calls tool", "g #2 not json"),
            ("tool result of call #2", "of g"),
            ("tool result of call #1", "(empty)"),
        ]
    )


def test_anthropic_blocks_in_their_order():
    assert said(
        [
            {"role": "user", "content": "Go"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "First."},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "42"}]},
                    {"type": "text", "text": "Well?"},
                ],
            },
        ]
    ) == [
        ("user", "Go"),
        ("assistant", "First."),
        ("assistant calls tool", 'f #1 {"x": 1}'),
        ("tool result of call #1", "42"),
        ("user", "Well?"),
    ]


def test_responses_items():
    reader = Reader()
    reader.read(
        [
            {"role": "user", "content": [{"type": "input_text", "text": "Go"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "think"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "7"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Seven."}]},
        ]
    )
    steps = reader.end()
    assert [(s.kind, s.text) for s in steps] == [
        ("user", "Go"),
        ("assistant calls tool", "f #1 {}"),
        ("tool result of call #1", "7"),
        ("assistant", "Seven."),
    ]
    assert steps[1].aside == "think"


def test_odd_things_are_read_somehow():
    assert said(
        [
            "a prompt",
            7,
            None,
            {"role": "user"},
            {"role": "user", "content": {"x": 1}},
            {"role": "tool", "content": "lost"},
        ]
    ) == [
        ("prompt", "a prompt"),
        ("prompt", "7"),
        ("user", '{"x": 1}'),
        ("tool result of an unknown call", "lost"),
    ]
    assert said(
        [{"role": "assistant", "content": None, "refusal": "no", "function_call": {"name": "f", "arguments": "{}"}}]
    ) == [
        ("assistant", "no"),
        ("assistant calls tool", "f #1 {}"),
    ]


def test_clean_takes_away_what_breaks_an_api():
    assert clean("a\ud800b\x00c\x1b[31m\td\n") == "a\ufffdb\ufffdc\ufffd[31m\td\n"
    assert clean("é漢😀") == "é漢😀"


def test_plain_and_canonical():
    assert plain([1, 2, 3]) == "(3 token ids)"
    assert plain([{"type": "text", "text": "a"}, "b", {"type": "input_audio"}]) == "a\nb\n(input_audio, not shown)"
    assert canonical({"b": 1, "a": "é"}) == '{"a": "é", "b": 1}'
    assert canonical("[" * 100_000) == "[" * 100_000


def test_how_a_call_ended_is_said():
    def note(**more):
        steps, asked = call_steps(
            call([{"role": "user", "content": "x"}], [{"role": "assistant", "content": "y"}], **more), 0
        )
        assert asked == 1
        return steps[-1].text

    assert note() == "y"
    assert "broke" in note(outcome="aborted")
    assert "503" in note(outcome="error", status=503, error="boom")
    assert "token limit" in note(finish_reason="length")


def test_replies_of_each_format():
    assert replies(call([], [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])) == [
        [{"role": "assistant", "content": "a"}],
        [{"role": "assistant", "content": "b"}],
    ]
    items = [{"type": "reasoning"}, {"type": "message", "content": "x"}]
    assert replies(call([], items, dialect="responses")) == [items]
    assert replies(call([], [{"output": items}], dialect="responses")) == [items]
    assert replies(call([])) == []


def test_plain_prompt_is_a_completion_s():
    assert plain_prompt(call([{"role": "user", "content": "once upon"}], dialect="completions")) == "once upon"
    assert plain_prompt(call([{"role": "user", "content": "once upon"}])) is None
    assert plain_prompt(call([{"role": "user", "content": [1, 2]}], dialect="completions")) is None


def test_tool_lines_of_each_format():
    assert tool_lines(
        [
            {"type": "function", "function": {"name": "f", "description": "Does f.", "parameters": {"type": "object"}}},
            {"name": "g", "description": "Does g.", "input_schema": {}},
            {"type": "web_search"},
            "nonsense",
        ]
    ) == ['f {"type": "object"}: Does f.', "g {}: Does g.", "web_search {}"]
