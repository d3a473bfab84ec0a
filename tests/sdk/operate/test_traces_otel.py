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


def test_system_instructions_come_first_and_reasoning_is_not_said() -> None:
    said = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "a"}, {"type": "text", "content": "b"}]
    told = {
        "gen_ai.system_instructions": [{"type": "text", "content": "be good"}],
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}],
        "gen_ai.output.messages": [{"role": "assistant", "parts": said}],
    }
    attributes = [{"key": k, "value": {"stringValue": json.dumps(v)}} for k, v in told.items()]
    (trace,) = traces([{"traceId": "t", "startTimeUnixNano": "1", "attributes": attributes}])
    texts = [(m["role"], m["content"]) for m in trace.calls[0].conversation()]
    assert texts == [("system", "be good"), ("user", "hi"), ("assistant", "a\nb")]


def test_ids_in_base64_are_read_as_hex() -> None:
    (trace,) = traces([{"traceId": "AAECAwQFBgcICQoLDA0ODw==", "startTimeUnixNano": "1"}])
    assert trace.id == "000102030405060708090a0b0c0d0e0f"
