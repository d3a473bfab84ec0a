"""OpenTelemetry's GenAI spans."""

from __future__ import annotations

import json

from tests.support.logs import ASK, END, read, replied

from slipstream.imports.forms.traces.otel import is_one


def attribute(key, value):
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def span(**more):
    sent = [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    got = [{"role": "assistant", "parts": [{"type": "text", "content": "done"}]}]
    told = [attribute("gen_ai.operation.name", "chat"), attribute("gen_ai.input.messages", sent), attribute("gen_ai.output.messages", got)]  # fmt: skip
    return {"traceId": "aa", "spanId": "b", "name": "chat m", "startTimeUnixNano": "1", "attributes": told, **more}


def test_its_rows_are_told_from_others():
    assert is_one({"resourceSpans": []}) and is_one(span())
    assert not is_one({"traceId": "t", "type": "GENERATION"})
    assert not is_one({"context.trace_id": "t"})


def test_spans_of_one_conversation_are_one_episode(tmp_path):
    spans = [span(traceId=t, spanId=t, attributes=[*span()["attributes"], attribute("gen_ai.conversation.id", "c1")]) for t in ("aa", "bb")]  # fmt: skip
    assert {b["id"] for b in read(tmp_path, *spans)[0]} == {"otel-c1"}
    assert len(read(tmp_path, span(), span(traceId="bb"))[0]) == 2


def test_system_instructions_come_first_and_reasoning_is_kept_apart(tmp_path):
    said = [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "a"}, {"type": "text", "content": "b"}]
    more = [attribute("gen_ai.system_instructions", [{"type": "text", "content": "be good"}]), attribute("gen_ai.output.messages", [{"role": "assistant", "parts": said}])]  # fmt: skip
    (body,), _ = read(tmp_path, span(attributes=[*span()["attributes"], *more]))
    texts = [(m["role"], m["content"]) for m in body["messages"]]
    assert texts == [("system", "be good"), ("user", "hi"), ("assistant", "a\nb")]
    assert replied(body)[0]["reasoning_content"] == "hm"


def test_ids_in_base64_are_read_as_hex(tmp_path):
    (body,), _ = read(tmp_path, span(traceId="AAECAwQFBgcICQoLDA0ODw=="))
    assert body["id"] == "otel-000102030405060708090a0b0c0d0e0f"


def test_a_call_without_its_content_is_said(tmp_path):
    bodies, report = read(tmp_path, span(attributes=[attribute("gen_ai.operation.name", "chat")]))
    assert not bodies and ("a model call", "its messages were not recorded") in report.dropped


def test_langfuse_attributes_and_events_in_logs(tmp_path):
    told = {"langfuse.observation.type": "generation", "langfuse.observation.input": json.dumps([ASK]), "langfuse.observation.output": "done"}  # fmt: skip
    (body,), _ = read(tmp_path, {"traceId": "a", "spanId": "b", "startTimeUnixNano": "1", "attributes": told})
    assert replied(body) == [END]
    said = [{"key": f"gen_ai.{n}.messages", "value": {"stringValue": json.dumps([m])}} for n, m in (("input", ASK), ("output", END))]  # fmt: skip
    record = {"eventName": "gen_ai.client.inference.operation.details", "traceId": "a", "attributes": said}
    (body,), _ = read(tmp_path, {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    assert replied(body) == [END]
