"""OpenTelemetry's GenAI spans."""

from __future__ import annotations

import json

from tests.support.logs import ASK, END, read, replied

from slipstream_imports.forms.traces.otel import is_one


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


def record(name, body, **more):
    told = [{"key": k, "value": {"stringValue": v} if isinstance(v, str) else v} for k, v in body.items()]
    return {"eventName": name, "timeUnixNano": "5", "traceId": "aa", "spanId": "b", "body": {"kvlistValue": {"values": told}}, **more}  # fmt: skip


def logs(*records):
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def test_messages_in_log_records_belong_to_their_span(tmp_path):
    told = {"message": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "done"}}]}}}
    said = logs(record("gen_ai.user.message", {"content": "hi"}), record("gen_ai.choice", told))
    asked = [attribute("gen_ai.operation.name", "chat"), attribute("gen_ai.request.model", "m")]
    for rows in ((span(attributes=asked), said), (said, span(attributes=asked))):
        (body,), report = read(tmp_path, *rows)
        assert replied(body) == [END] and body["replies"][0]["model"] == "m" and report.clean
    (body,), report = read(tmp_path, said)
    assert replied(body) == [END] and report.clean


def test_a_score_in_a_log_record(tmp_path):
    told = [attribute("gen_ai.evaluation.name", "reward"), {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}}]  # fmt: skip
    scored = {"eventName": "gen_ai.evaluation.result", "timeUnixNano": "5", "traceId": "aa", "spanId": "b", "attributes": told}  # fmt: skip
    (body,), report = read(tmp_path, span(), logs(scored))
    assert body["reward"] == 0.5 and report.calls == 1 and report.clean


def test_spans_that_do_not_name_the_conversation_go_with_those_that_do(tmp_path):
    root = span(spanId="r", name="trip", attributes=[attribute("gen_ai.operation.name", "invoke_agent")])
    talk = attribute("gen_ai.conversation.id", "c1")
    (body,), report = read(tmp_path, root, span(parentSpanId="r", attributes=[*span()["attributes"], talk]))
    assert (body["id"], body["task"]) == ("otel-c1", "trip") and report.clean
    named = {**root, "attributes": [*root["attributes"], talk]}
    (body,), report = read(tmp_path, span(parentSpanId="r"), named)
    assert (body["id"], body["task"]) == ("otel-c1", "trip") and report.clean


def test_what_tempo_and_jaeger_answer(tmp_path):
    tags = [{"key": a["key"], "type": "string", "value": a["value"]["stringValue"]} for a in span()["attributes"]]
    jaeger = {"traceID": "aa", "spanID": "b", "operationName": "chat", "startTime": 10**15, "duration": 10**6, "tags": tags}  # fmt: skip
    whole = {"scopeSpans": [{"spans": [span()]}]}
    for row in ({"batches": [whole]}, {"trace": {"resourceSpans": [whole]}}, {"result": {"resourceSpans": [whole]}}):
        (body,), report = read(tmp_path, row)
        assert (body["id"], replied(body)) == ("otel-aa", [END]) and report.clean
    (body,), report = read(tmp_path, {"data": [{"traceID": "aa", "spans": [jaeger], "processes": {}}], "total": 0})
    assert (body["id"], replied(body), body["at"]) == ("otel-aa", [END], 1e9) and report.clean
    assert body["replies"][0]["seconds"] == 1.0


def test_events_in_pydantic_ai_s_attribute(tmp_path):
    events = [{"event.name": "gen_ai.user.message", "content": "hi", "gen_ai.message.index": 0}, {"event.name": "gen_ai.choice", "index": 0, "message": END}]  # fmt: skip
    (body,), report = read(tmp_path, span(attributes=[attribute("gen_ai.operation.name", "chat"), attribute("events", events)]))  # fmt: skip
    assert replied(body) == [END] and report.clean
