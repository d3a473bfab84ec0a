"""Langfuse's traces, observations and scores."""

from __future__ import annotations

from slipstream.operate.traces_langfuse import is_langfuse, traces

ASK = {"role": "user", "content": "hi"}
END = {"role": "assistant", "content": "done"}
ROW = {
    "id": "o",
    "traceId": "t",
    "type": "GENERATION",
    "startTime": "2026-05-01T10:00:00Z",
    "input": [ASK],
    "output": END,
}


def test_its_rows_are_told_from_others() -> None:
    assert is_langfuse(ROW)
    assert is_langfuse({"id": "t", "observations": []})
    assert is_langfuse({"trace_id": "t", "name": "s", "value": 1, "data_type": "NUMERIC"})
    assert not is_langfuse({"traceId": "t", "startTimeUnixNano": "1"})
    assert not is_langfuse({"messages": [ASK]})


def test_rows_and_a_nested_trace_are_the_same() -> None:
    (flat,) = traces([ROW, {"traceId": "t", "name": "reward", "value": 0.5, "dataType": "NUMERIC"}])
    (whole,) = traces([{"id": "t", "observations": [ROW], "scores": [{"name": "reward", "value": 0.5}]}])
    assert flat.scores == whole.scores == {"reward": 0.5}
    assert [c.conversation() for c in flat.calls] == [c.conversation() for c in whole.calls] == [[ASK, END]]


def test_a_span_is_no_call() -> None:
    (trace,) = traces([{**ROW, "type": "SPAN"}])
    assert trace.calls == []


def test_scores_of_the_whole_trace_that_are_numbers_count() -> None:
    rows: list[dict[str, object]] = [
        {"traceId": "t", "type": "GENERATION", "input": "hi", "output": "ho", "startTime": "2026-05-01T10:00:00Z"},
        {"traceId": "t", "name": "good", "value": True, "dataType": "BOOLEAN"},
        {"traceId": "t", "name": "tone", "value": "kind", "dataType": "CATEGORICAL"},
        {"traceId": "t", "name": "step", "value": 1, "dataType": "NUMERIC", "observationId": "o"},
    ]
    (trace,) = traces(rows)
    assert trace.scores == {"good": 1.0}
