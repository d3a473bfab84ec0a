"""Phoenix's spans, with OpenInference's attributes."""

from __future__ import annotations

from slipstream.operate.traces_phoenix import is_phoenix, traces

ROW = {
    "name": "ChatCompletion",
    "span_kind": "LLM",
    "parent_id": "p",
    "context.trace_id": "t",
    "attributes.llm.input_messages": [{"message.role": "user", "message.content": "hi"}],
    "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": "done"}],
}
ROOT = {"name": "travel", "span_kind": "CHAIN", "parent_id": None, "context.trace_id": "t"}


def test_its_rows_are_told_from_others() -> None:
    assert is_phoenix(ROW)
    assert is_phoenix({"attributes": {"openinference.span.kind": "LLM"}})
    assert not is_phoenix({"traceId": "t", "type": "SPAN"})


def test_the_root_names_the_task_and_holds_scores() -> None:
    scored = {**ROOT, "annotations": [{"name": "helpful", "result": {"score": 0.5}}, {"name": "tone", "result": {}}]}
    (trace,) = traces([scored, ROW])
    assert (trace.id, trace.task, trace.scores) == ("t", "travel", {"helpful": 0.5})
    (call,) = trace.calls
    assert [m["content"] for m in call.conversation()] == ["hi", "done"]


def test_a_chain_is_no_call() -> None:
    assert traces([ROOT])[0].calls == []
