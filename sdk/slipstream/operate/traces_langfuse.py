"""Exports of Langfuse: traces with their observations, or rows of observations (from API, UI or blob storage)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slipstream.operate.traces import (
    Message,
    ModelCall,
    Trace,
    Value,
    listed,
    mapping,
    messages_of,
    number_of,
    parsed,
    time_of,
)

MODEL_CALLS = ("GENERATION",)
TYPES = (*MODEL_CALLS, "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")


def _get(row: Mapping[str, Value], *names: str) -> Value:
    """The first of these that is there: the API says ``traceId``, blob storage ``trace_id``."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def is_langfuse(row: Mapping[str, Value]) -> bool:
    """Whether a row of a file is a trace, an observation or a score of Langfuse."""
    if isinstance(parsed(row.get("observations")), list):
        return True
    return _get(row, "traceId", "trace_id") is not None and (
        row.get("type") in TYPES or "dataType" in row or "data_type" in row
    )


def traces(rows: Sequence[Mapping[str, Value]]) -> list[Trace]:
    """All traces of an export, in the order in which they stand."""
    found: dict[str, Trace] = {}
    for row in rows:
        if isinstance(parsed(row.get("observations")), list):
            trace = found.setdefault(str(_get(row, "id", "traceId")), Trace(str(_get(row, "id", "traceId"))))
            _describe(trace, row)
            for observation in listed(row["observations"]):
                _observe(trace, mapping(observation))
            for score in listed(row.get("scores")):
                _score(trace, mapping(score))
            continue
        name = str(_get(row, "traceId", "trace_id"))
        trace = found.setdefault(name, Trace(name))
        if row.get("type") in TYPES:
            named = _get(row, "traceName", "trace_name")
            trace.task = trace.task or (str(named) if named else None)
            _observe(trace, row)
        else:
            _score(trace, row)
    return list(found.values())


def _describe(trace: Trace, row: Mapping[str, Value]) -> None:
    trace.task = str(row["name"]) if row.get("name") else trace.task
    for tag, names in (
        ("user", ("userId", "user_id")),
        ("session", ("sessionId", "session_id")),
        ("release", ("release",)),
    ):
        if (value := _get(row, *names)) is not None:
            trace.tags[tag] = str(value)
    for label in listed(row.get("tags")):
        trace.tags[str(label)] = "yes"


def _score(trace: Trace, score: Mapping[str, Value]) -> None:
    name, value = score.get("name"), number_of(score.get("value"))
    if name and value is not None and _get(score, "observationId", "observation_id") is None:
        trace.scores[str(name)] = value


def _observe(trace: Trace, row: Mapping[str, Value]) -> None:
    if row.get("type") not in MODEL_CALLS:
        return
    sent = parsed(row.get("input"))
    replies = list(_replies(row.get("output")))
    model = _get(row, "model", "providedModelName", "provided_model_name")
    trace.calls.append(
        ModelCall(
            at=time_of(_get(row, "startTime", "start_time")),
            messages=messages_of(sent, "user"),
            reply=replies[-1] if replies else None,
            model=str(model) if model else None,
            tools=listed(sent["tools"]) or None if isinstance(sent, Mapping) and sent.get("tools") else None,
        )
    )


def _replies(output: Value) -> Iterator[Message]:
    for message in messages_of(output, "assistant"):
        if message["role"] == "assistant":
            yield message
