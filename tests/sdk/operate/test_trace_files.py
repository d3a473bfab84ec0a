"""Traces of other tools: the shapes that their exports have, and files that only look like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import SlipstreamError
from slipstream.operate.trace_files import FORMATS, TraceTool, read_traces, tool_of

ASK = {"role": "user", "content": "Book a flight to Oslo"}
CALL = {"id": "t1", "type": "function", "function": {"name": "search", "arguments": '{"to": "Oslo"}'}}
USE = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND = {"role": "tool", "tool_call_id": "t1", "content": "SK 461"}
BOOKED = {"role": "assistant", "content": "Booked SK 461."}
WHOLE: list[dict] = [ASK, USE, FOUND, BOOKED]
CALLS: list[tuple[list[dict], dict]] = [([ASK], USE), ([ASK, USE, FOUND], BOOKED)]

LANGFUSE_TRACE: dict[str, Any] = {
    "id": "tr1", "name": "travel", "userId": "ann", "sessionId": "s1", "tags": ["prod"],
    "scores": [
        {"name": "helpful", "value": 0.5}, {"name": "reward", "value": True}, {"name": "tone", "value": "good", "dataType": "CATEGORICAL"},
        {"name": "of a step", "value": 1, "observationId": "o1"},
    ],
    "observations": [
        {"id": "o2", "type": "GENERATION", "startTime": "2026-05-01T10:00:02.000Z", "model": "gpt-4o", "input": [ASK, USE, FOUND], "output": BOOKED},
        {"id": "o0", "type": "SPAN", "startTime": "2026-05-01T10:00:00.000Z", "input": "whatever", "output": "else"},
        {"id": "o1", "type": "GENERATION", "startTime": "2026-05-01T10:00:01.000Z", "model": "gpt-4o", "input": {"messages": [ASK], "tools": [{"x": 1}]}, "output": USE},
    ],
}  # fmt: skip
LANGFUSE_ROWS = [
    {"id": "o1", "trace_id": "tr1", "trace_name": "travel", "type": "GENERATION", "start_time": "2026-05-01 10:00:01", "provided_model_name": "gpt-4o",
     "input": json.dumps([ASK]), "output": json.dumps(USE)},
    {"id": "o2", "trace_id": "tr1", "type": "GENERATION", "start_time": "2026-05-01 10:00:02", "input": json.dumps({"messages": [ASK, USE, FOUND]}), "output": "Booked SK 461."},
    {"id": "s1", "trace_id": "tr1", "name": "helpful", "value": 0.5, "data_type": "NUMERIC"},
]  # fmt: skip


def inference(message: dict) -> dict:
    made = {"message.role": message["role"]}
    if message.get("content") is not None:
        made["message.content"] = message["content"]
    if message.get("tool_calls"):
        function = message["tool_calls"][0]["function"]
        made["message.tool_calls"] = [
            {
                "tool_call.id": "t1",
                "tool_call.function.name": function["name"],
                "tool_call.function.arguments": function["arguments"],
            }
        ]
    if message.get("tool_call_id"):
        made["message.tool_call_id"] = message["tool_call_id"]
    return made


def phoenix_row(sent: list, reply: dict, second: int) -> dict:
    return {
        "name": "ChatCompletion", "span_kind": "LLM", "parent_id": "p", "start_time": f"2026-05-01T10:00:0{second}+00:00", "context.trace_id": "tr1",
        "context.span_id": f"s{second}", "attributes.llm.model_name": "gpt-4o", "attributes.llm.input_messages": [inference(m) for m in sent],
        "attributes.llm.output_messages": [inference(reply)], "attributes.session.id": "s1",
    }  # fmt: skip


PHOENIX_ROWS = [
    {"name": "travel", "span_kind": "CHAIN", "parent_id": None, "context.trace_id": "tr1", "annotations": [{"name": "helpful", "result": {"score": 0.5}}]},
    phoenix_row([ASK], USE, 1), phoenix_row([ASK, USE, FOUND], BOOKED, 2),
]  # fmt: skip


def flat(messages: list[dict], prefix: str) -> dict:
    made = {}
    for i, message in enumerate(messages):
        for name, value in inference(message).items():
            if name == "message.tool_calls":
                for part, text in value[0].items():
                    made[f"{prefix}.{i}.message.tool_calls.0.{part}"] = text
            else:
                made[f"{prefix}.{i}.{name}"] = value
    return made


PHOENIX_API = {
    "data": [
        {
            "name": "ChatCompletion", "context": {"trace_id": "tr1", "span_id": f"s{i}"}, "span_kind": "LLM", "parent_id": "p", "start_time": f"2026-05-01T10:00:0{i}+00:00",
            "attributes": {"llm.model_name": "gpt-4o", **flat(sent, "llm.input_messages"), **flat([reply], "llm.output_messages")},
        }
        for i, (sent, reply) in enumerate(CALLS)
    ],
    "next_cursor": None,
}  # fmt: skip


def value(v: object) -> dict:
    return (
        {"intValue": str(v)}
        if isinstance(v, int)
        else {"doubleValue": v}
        if isinstance(v, float)
        else {"stringValue": v if isinstance(v, str) else json.dumps(v)}
    )


def attributes(told: dict) -> list[dict]:
    return [{"key": k, "value": value(v)} for k, v in told.items()]


def parts(message: dict) -> dict:
    if message["role"] == "tool":
        found = [{"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}]
    elif message.get("tool_calls"):
        call = message["tool_calls"][0]
        found = [
            {
                "type": "tool_call",
                "id": "t1",
                "name": call["function"]["name"],
                "arguments": json.loads(call["function"]["arguments"]),
            }
        ]
    else:
        found = [{"type": "text", "content": message["content"]}]
    return {"role": message["role"], "parts": found}


def otlp(spans: list[dict]) -> dict:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}


def span(second: int, told: dict, **more) -> dict:
    return {"traceId": "ab" * 16, "spanId": f"{second:016x}", "parentSpanId": "cd" * 8, "name": "chat gpt-4o",
            "startTimeUnixNano": str((1_777_629_600 + second) * 10**9), "attributes": attributes({"gen_ai.request.model": "gpt-4o", **told}), **more}  # fmt: skip


OTEL = otlp(
    [
        span(1, {"gen_ai.input.messages": [parts(ASK)], "gen_ai.output.messages": [parts(USE)], "gen_ai.conversation.id": "tr1"}),
        span(2, {"gen_ai.input.messages": [parts(m) for m in (ASK, USE, FOUND)], "gen_ai.output.messages": [parts(BOOKED)], "gen_ai.conversation.id": "tr1"},
             events=[{"name": "gen_ai.evaluation.result", "attributes": attributes({"gen_ai.evaluation.name": "helpful", "gen_ai.evaluation.score.value": 0.5})}]),
    ]
)  # fmt: skip


def event(message: dict, choice: bool = False) -> dict:
    name = "gen_ai.choice" if choice else f"gen_ai.{message['role']}.message"
    told = {k: v for k, v in message.items() if v is not None and k not in ("role", "tool_call_id")}
    if message.get("tool_call_id"):
        told["id"] = message["tool_call_id"]
    return {"name": name, "attributes": attributes({"message": message} if choice else told)}


OTEL_EVENTS = otlp(
    [
        span(1, {"gen_ai.conversation.id": "tr1"}, events=[event(ASK), event(USE, choice=True)]),
        span(
            2,
            {"gen_ai.conversation.id": "tr1"},
            events=[event(ASK), event(USE), event(FOUND), event(BOOKED, choice=True)],
        ),
    ]
)


def numbered(messages: list[dict], prefix: str) -> dict:
    made = {}
    for i, m in enumerate(messages):
        made |= {f"{prefix}.{i}.{k}": v for k, v in m.items() if isinstance(v, str)}
        for call in m.get("tool_calls", ()):
            made |= {f"{prefix}.{i}.tool_calls.0.id": call["id"], f"{prefix}.{i}.tool_calls.0.name": call["function"]["name"],
                     f"{prefix}.{i}.tool_calls.0.arguments": call["function"]["arguments"]}  # fmt: skip
    return made


OTEL_NUMBERS = otlp(
    [
        span(
            1,
            {
                **numbered([ASK], "gen_ai.prompt"),
                **numbered([USE], "gen_ai.completion"),
                "gen_ai.conversation.id": "tr1",
            },
        ),
        span(
            2,
            {
                **numbered([ASK, USE, FOUND], "gen_ai.prompt"),
                **numbered([BOOKED], "gen_ai.completion"),
                "gen_ai.conversation.id": "tr1",
            },
        ),
    ]
)
OTEL_INFERENCE = otlp(
    [
        span(1, {"openinference.span.kind": "LLM", "gen_ai.conversation.id": "tr1", **flat([ASK], "llm.input_messages"), **flat([USE], "llm.output_messages")}),
        span(2, {"openinference.span.kind": "LLM", "gen_ai.conversation.id": "tr1", **flat([ASK, USE, FOUND], "llm.input_messages"), **flat([BOOKED], "llm.output_messages")}),
    ]
)  # fmt: skip

FILES: dict[str, tuple[TraceTool, str, object]] = {
    "langfuse trace": ("langfuse", "a.json", LANGFUSE_TRACE), "langfuse traces": ("langfuse", "a.json", [LANGFUSE_TRACE]),
    "langfuse api": ("langfuse", "a.json", {"data": LANGFUSE_ROWS, "meta": {}}), "langfuse rows": ("langfuse", "a.jsonl", LANGFUSE_ROWS),
    "phoenix rows": ("phoenix", "a.jsonl", PHOENIX_ROWS), "phoenix api": ("phoenix", "a.json", PHOENIX_API),
    "otel": ("otel", "a.json", OTEL), "otel lines": ("otel", "a.jsonl", [OTEL]), "otel events": ("otel", "a.json", OTEL_EVENTS),
    "otel numbers": ("otel", "a.json", OTEL_NUMBERS), "otel inference": ("otel", "a.json", OTEL_INFERENCE),
}  # fmt: skip


def written(folder: Path, name: str, told: object) -> Path:
    path = folder / name
    rows = told if isinstance(told, list) and path.suffix == ".jsonl" else [told]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def messages(body: Any) -> list[dict]:
    return body["messages"]


def said(message: dict) -> dict:
    """A message without what the shapes may leave out or write in another way."""
    calls = [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())
    ]
    return {
        "role": message["role"],
        "content": message.get("content"),
        "calls": calls,
        "of": message.get("tool_call_id"),
    }


@pytest.mark.parametrize("name", FILES)
def test_each_shape_is_seen_and_read_as_the_same_run(tmp_path, name):
    tool, file, told = FILES[name]
    path = written(tmp_path, file, told)
    assert tool_of(path) == tool
    (entry,) = read_traces(path, tool, "some task")
    (body,) = entry.bodies
    assert [said(m) for m in messages(body)] == [said(m) for m in WHOLE]
    assert body["id"] == f"{tool}-tr1"
    assert body["model"] in ("gpt-4o", None)
    assert body["at"] == pytest.approx(1_777_629_602, abs=2)


def test_names_scores_and_tags(tmp_path):
    (entry,) = read_traces(written(tmp_path, "a.json", LANGFUSE_TRACE), "langfuse", None)
    (body,) = entry.bodies
    assert (body["task"], body["reward"], body["metrics"]) == ("travel", 1.0, {"helpful": 0.5})
    assert body["tags"] == {"user": "ann", "session": "s1", "prod": "yes"}
    for name, told in (("a.jsonl", PHOENIX_ROWS), ("b.json", OTEL)):
        (entry,) = read_traces(written(tmp_path, name, told), "phoenix" if name[0] == "a" else "otel", "t")
        assert entry.bodies[0]["metrics"] == {"helpful": 0.5}


def test_calls_that_no_later_one_repeats_stay(tmp_path):
    """A sub-agent's conversation is one of its own, of the same episode."""
    other = {
        "id": "o3",
        "type": "GENERATION",
        "startTime": "2026-05-01T10:00:01.500Z",
        "input": [{"role": "user", "content": "sum up"}],
        "output": "done",
    }
    trace = LANGFUSE_TRACE | {"observations": [*LANGFUSE_TRACE["observations"], other]}
    (entry,) = read_traces(written(tmp_path, "a.json", trace), "langfuse", None)
    assert [len(messages(b)) for b in entry.bodies] == [2, 4]
    assert len({b["id"] for b in entry.bodies}) == 1
    assert sum("metrics" in b for b in entry.bodies) == 1


def test_a_data_frame_as_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([r | {"annotations": None} for r in PHOENIX_ROWS[1:]]), tmp_path / "a.parquet")
    assert tool_of(tmp_path / "a.parquet") == "phoenix"
    (entry,) = read_traces(tmp_path / "a.parquet", "phoenix", None)
    assert [said(m) for m in messages(entry.bodies[0])] == [said(m) for m in WHOLE]


def test_a_file_without_a_conversation_says_so(tmp_path):
    nothing: list[tuple[TraceTool, object]] = [
        ("langfuse", {"id": "x", "observations": []}),
        ("otel", otlp([])),
        ("phoenix", [{"span_kind": "LLM", "context.trace_id": "x"}]),
    ]
    for tool, told in nothing:
        with pytest.raises(SlipstreamError, match="none of its"):
            list(read_traces(written(tmp_path, "a.json", told), tool, None))


def test_logs_of_conversations_are_no_traces(tmp_path):
    for row in ({"messages": [ASK, BOOKED]}, {"request": {}, "response": {}}, {"trajectories": []}, {"call_list": []}):
        assert tool_of(written(tmp_path, "a.jsonl", [row])) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["id", "traceId", "type", "input", "output", "observations", "role", "content", "messages", "attributes", "llm.input_messages", "message.role", "span_kind",
         "context.trace_id", "spans", "resourceSpans", "scopeSpans", "key", "value", "stringValue", "intValue", "events", "name", "gen_ai.prompt.0.role", "0", "parts"]
    ), inner, max_size=5), max_leaves=25,
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(["id", "traceId", "type", "input", "output", "observations", "attributes", "span_kind", "context.trace_id",
    "attributes.llm.input_messages", "resourceSpans", "spans", "startTimeUnixNano", "events", "scores", "name", "annotations"]), JSON, max_size=6), max_size=4))  # fmt: skip
def test_any_json_is_read_or_refused(rows):
    for name, form in FORMATS.items():
        for trace in form.traces(rows):
            for body in trace.bodies(name, "t"):
                assert body["messages"] and json.dumps(body)
