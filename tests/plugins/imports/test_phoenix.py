"""Phoenix's spans, with OpenInference's attributes."""

from __future__ import annotations

from typing import Any

from tests.support.logs import read, replied

from slipstream_imports.forms.traces.phoenix import is_one

ROW = {
    "name": "ChatCompletion",
    "span_kind": "LLM",
    "parent_id": "p",
    "context.trace_id": "t",
    "attributes.llm.input_messages": [{"message.role": "user", "message.content": "hi"}],
    "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": "done"}],
}
ROOT = {"name": "travel", "span_kind": "CHAIN", "parent_id": None, "context.trace_id": "t"}


def test_its_rows_are_told_from_others():
    assert is_one(ROW) and is_one({"attributes": {"openinference.span.kind": "LLM"}})
    assert not is_one({"traceId": "t", "type": "SPAN"})


def test_the_root_names_the_task_and_holds_scores(tmp_path):
    scored = {**ROOT, "annotations": [{"name": "helpful", "result": {"score": 0.5}}, {"name": "tone", "result": {}}]}
    (body,), report = read(tmp_path, scored, ROW)
    assert (body["id"], body["task"], body["metrics"]) == ("phoenix-t", "travel", {"helpful": 0.5})
    assert report.calls == 1
    assert ("annotation tone", "it has a label and no score") in report.dropped


def test_a_chain_is_no_call(tmp_path):
    bodies, report = read(tmp_path, ROOT)
    assert not bodies and "no model call" in report.refused[0]


def test_json_that_was_said_stays_as_it_was_spelt(tmp_path):
    said = '{ "b": 1,  "a": [2] }'
    out = [{"message.role": "assistant", "message.content": said}]
    (body,), _ = read(tmp_path, {**ROW, "attributes.llm.output_messages": out})
    assert replied(body)[0]["content"] == said


def test_annotations_in_rows_of_their_own_find_their_span(tmp_path):
    told = {"annotator_kind": "HUMAN", "result": {"score": 0.5, "label": None}}
    spans = [{**ROOT, "context.span_id": "r"}, {**ROW, "context.span_id": "c", "parent_id": "r"}]
    rows = [{"name": "reward", "span_id": "r", **told}, {"name": "tone", "span_id": "c", **told}, {"name": "x", "span_id": "gone", **told}]  # fmt: skip
    (body,), report = read(tmp_path, rows[0], *spans, *rows[1:])
    assert (body["reward"], body["metrics"]) == (0.5, {"tone": 0.5})
    assert report.dropped == {("score x", "it names no trace that is in these files"): 1}


def test_a_trace_as_the_command_line_prints_it(tmp_path):
    attributes = {
        "openinference.span.kind": "LLM", "llm.model_name": "m",
        "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "hi",
        "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "done",
    }  # fmt: skip
    root = {"name": "agent", "context": {"trace_id": "t", "span_id": "r"}, "span_kind": "AGENT", "parent_id": None}
    call: dict[str, Any] = {
        "name": "chat",
        "context": {"trace_id": "t", "span_id": "s"},
        "span_kind": "LLM",
        "parent_id": "r",
    }
    call |= {"attributes": attributes, "annotations": [{"name": "right", "result": {"score": 1}}]}
    trace: Any = {"traceId": "t", "status": "OK", "duration": 5, "rootSpan": root, "spans": [root, call]}
    for told in ([trace], trace):
        notes = {**(told if isinstance(told, dict) else told[0]), "annotations": [{"name": "good", "score": 0.5}]}
        bodies, report = read(tmp_path, notes if isinstance(told, dict) else [notes])
        assert [(b["id"], b["task"], b["metrics"]) for b in bodies] == [
            ("phoenix-t", "agent", {"good": 0.5, "right": 1.0})
        ]
        assert report.calls == 1 and report.clean
