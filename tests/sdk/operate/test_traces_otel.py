"""OpenTelemetry's GenAI spans."""

from __future__ import annotations

import json

from slipstream.operate.traces_otel import is_otel, traces


def attribute(key: str, value: str) -> dict[str, object]:
    return {"key": key, "value": {"stringValue": value}}


def span(**more: object) -> dict[str, object]:
    sent = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    got = [{"role": "assistant", "parts": [{"type": "text", "content": "done"}]}]
    attributes = [
        attribute("gen_ai.operation.name", "chat"),
        attribute("gen_ai.request.model", "m"),
        attribute("gen_ai.input.messages", json.dumps(sent)),
        attribute("gen_ai.output.messages", json.dumps(got)),
    ]
    return {
        "traceId": "aa",
        "spanId": "b",
        "name": "chat m",
        "startTimeUnixNano": "1",
        "attributes": attributes,
        **more,
    }


def test_its_rows_are_told_from_others() -> None:
    assert is_otel({"resourceSpans": []})
    assert is_otel(span())
    assert not is_otel({"traceId": "t", "type": "GENERATION"})
    assert not is_otel({"context.trace_id": "t"})


def test_a_span_and_an_export_are_the_same_call() -> None:
    (alone,) = traces([span()])
    (inside,) = traces([{"resourceSpans": [{"scopeSpans": [{"spans": [span()]}]}]}])
    assert [c.conversation() for c in alone.calls] == [c.conversation() for c in inside.calls]
    assert [m["content"] for m in alone.calls[0].conversation()] == ["hi", "done"]
    assert alone.calls[0].model == "m"


def test_spans_of_one_conversation_are_one_trace() -> None:
    talk = attribute("gen_ai.conversation.id", "c1")
    spans = [span(traceId=t, attributes=[*span()["attributes"], talk]) for t in ("aa", "bb")]  # type: ignore[misc]
    assert [t.id for t in traces(spans)] == ["c1"]
    assert len(traces([span(), span(traceId="bb")])) == 2
