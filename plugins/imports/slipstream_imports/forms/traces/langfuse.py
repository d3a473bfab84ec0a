"""Langfuse: traces with their observations (API, and both shapes of the page's download), or rows of observations."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_chat.inputs import tool_of
from slipstream_chat.report import Place, Value
from slipstream_chat.values import first, listed, mapping, parsed
from slipstream_imports.records import ModelCall, Told
from slipstream_imports.rows import LogRow
from slipstream_imports.traces import Late, Trace, Traces, gathered, replies_of, sent_of, usage_of

GATHERS_ROWS = True
MODEL_CALL = "GENERATION"
OBSERVATION_TYPES = (
    MODEL_CALL,
    "SPAN",
    "EVENT",
    "AGENT",
    "TOOL",
    "CHAIN",
    "RETRIEVER",
    "EVALUATOR",
    "EMBEDDING",
    "GUARDRAIL",
)
TAG_FIELDS = (
    ("user", ("userId", "user_id")),
    ("session", ("sessionId", "session_id")),
    ("release", ("release",)),
    ("version", ("version",)),
    ("environment", ("environment",)),
)


def is_one(row: Mapping[str, Value]) -> bool:
    """A trace, an observation or a score."""
    if isinstance(parsed(row.get("observations")), list):
        return True
    if _is_trace(row):
        return True
    typed = row.get("type") in OBSERVATION_TYPES
    if typed and ("startTime" in row or "start_time" in row):
        return True
    return first(row, "traceId", "trace_id") is not None and (typed or "dataType" in row or "data_type" in row)


def _is_trace(row: Mapping[str, Value]) -> bool:
    return {"id", "timestamp", "bookmarked", "public"} <= row.keys()


@gathered("langfuse")
def runs(found: Traces, row: LogRow, place: Place) -> None:
    if "observations" in row.value or "trace" in row.value:
        _trace(found, row, place)
    elif row.value.get("type") in OBSERVATION_TYPES:
        ident = first(row.value, "traceId", "trace_id") or row.value.get("id")
        _observation(found.named(ident, row), row.value, place)
    elif "value" in row.value or "dataType" in row.value or "data_type" in row.value:
        if (score := _score(row.value, place)) is not None:
            ids = (first(row.value, "traceId", "trace_id"),)
            found.late.append(Late(ids, *score, place))
    elif _is_trace(row.value):  # a file of traces, beside those of their observations and scores
        _describe(found.named(row.value["id"], row), row.value)
    else:
        place.drop("a row", "it is neither a trace nor an observation nor a score")


def _trace(found: Traces, row: LogRow, place: Place) -> None:
    told = mapping(row.value.get("trace"))
    told = told or row.value
    observations = [
        *listed(row.value.get("observations")),
        *(listed(told.get("observations")) if told is not row.value else []),
    ]
    objects = [mapping(o) for o in observations if isinstance(parsed(o), Mapping)]
    if len(objects) < len(observations):
        place.drop("observations", "their ids alone stand in the file: export the observations, or download the trace")
    of_parts = (first(o, "traceId", "trace_id") for o in objects)
    ident = first(told, "id", "traceId", "trace_id") or next((i for i in of_parts if i), None) or row.value.get("id")
    trace = found.named(ident, row)
    _describe(trace, told)
    for observation in objects:
        _observation(trace, observation, place)
    scores = [*listed(told.get("scores")), *(listed(row.value.get("scores")) if told is not row.value else [])]
    seen: set[str] = set()
    for score in map(mapping, scores):
        if not score:
            place.drop("scores", "their ids alone stand in the file")
        elif (name := str(score.get("id"))) not in seen or score.get("id") is None:
            seen.add(name)
            trace.scores += filter(None, [_score(score, place)])


def _describe(trace: Trace, row: Mapping[str, Value]) -> None:
    trace.task = str(row["name"]) if row.get("name") else trace.task
    for tag, names in TAG_FIELDS:
        if (value := first(row, *names)) is not None:
            trace.tags[tag] = str(value)
    for label in listed(row.get("tags")):
        trace.tags[str(label)] = "yes"


def _score(score: Mapping[str, Value], place: Place) -> tuple[str, float, bool] | None:
    """Name, value, and whether it is of a whole trace. None: it is no number, which is told."""
    name, kind = str(score.get("name") or "score"), first(score, "dataType", "data_type")
    value = score.get("value")
    if kind in ("CATEGORICAL", "TEXT") or (isinstance(value, str) and kind is None and not value.strip()):
        place.drop(f"score {name}", "it is a category, not a number")
        return None
    read = float(value) if isinstance(value, bool) else place.score(value, f"score {name}")
    if value is None:
        place.drop(f"score {name}", "it has no value")
    return None if read is None else (name, read, first(score, "observationId", "observation_id") is None)


def _observation(trace: Trace, row: Mapping[str, Value], place: Place) -> None:
    ident = str(row.get("id") or "")
    parent = first(row, "parentObservationId", "parent_observation_id")
    named = first(row, "traceName", "trace_name")
    trace.task = trace.task or (str(named) if named else None)
    for tag, names in TAG_FIELDS[:2]:
        if (value := first(row, *names)) is not None:
            trace.tags.setdefault(tag, str(value))
    for label in listed(first(row, "traceTags", "trace_tags")):
        trace.tags[str(label)] = "yes"
    trace.parent(ident, parent)
    for score in map(mapping, listed(row.get("scores"))):
        if score:
            trace.scores += filter(None, [_score({"observationId": ident, **score}, place)])
    if row.get("type") == MODEL_CALL:
        trace.call(ident, parent, _call(row, place))


def _call(row: Mapping[str, Value], place: Place) -> ModelCall:
    messages, tools = sent_of(row.get("input"), place)
    settings = mapping(first(row, "modelParameters", "model_parameters"))
    tools = tools or [tool_of(t) for t in listed(settings.get("tools"))] or None
    at = place.time(first(row, "startTime", "start_time"), "startTime")
    end = place.time(first(row, "endTime", "end_time"), "endTime")
    counts = usage_of(
        first(row, "usageDetails", "usage_details"),
        row.get("usage"),
        {
            "input": first(row, "promptTokens", "inputUsage", "input_usage"),
            "output": first(row, "completionTokens", "outputUsage", "output_usage"),
        },
    )
    model = first(row, "model", "providedModelName", "provided_model_name")
    told = Told.between(at, end, counts, model)
    return ModelCall(messages, replies_of(row.get("output"), messages, place), told, tools)
