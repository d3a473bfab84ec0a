"""LangSmith: runs of traces (API, bulk export), flat or with their child runs; and examples with inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from slipstream_chat.inputs import tool_of
from slipstream_chat.report import Place, Value
from slipstream_chat.values import first, listed, mapping
from slipstream_imports.records import ModelCall, Told
from slipstream_imports.rows import LogRow
from slipstream_imports.traces import Late, Trace, Traces, gathered, replies_of, sent_of, usage_of

GATHERS_ROWS = True
MODEL_CALL = "llm"


def is_one(row: Mapping[str, Value]) -> bool:
    if "run_type" in row or "dotted_order" in row or _is_feedback(row):
        return True
    return isinstance(row.get("inputs"), Mapping) and isinstance(row.get("outputs"), Mapping) and "messages" not in row


def _is_feedback(row: Mapping[str, Value]) -> bool:
    """A row of LangSmith's feedback, which names its run."""
    return "key" in row and "score" in row and ("run_id" in row or "trace_id" in row)


@gathered("langsmith")
def runs(found: Traces, row: LogRow, place: Place) -> None:
    if "run_type" in row.value or "dotted_order" in row.value:
        _take(found, row.value, None, place, row)
    elif _is_feedback(row.value):
        ids = (row.value.get("run_id"), row.value.get("trace_id"))
        found.late += [Late(ids, *score, place) for score in _scores([row.value], True, place)]
    else:
        trace = found.named(first(row.value, "id", "example_id"), row)
        trace.task = str(first(row.value, "name", "task") or "") or None
        trace.call(trace.id or "", None, _call(row.value, place))


def _take(found: Traces, row: Mapping[str, Value], inside: Value, place: Place, at: LogRow) -> None:
    ident = str(row.get("id") or row.get("run_id") or "")
    parent = first(row, "parent_run_id") or (inside if row.get("parent_run_id") is None else None)
    order = str(row.get("dotted_order") or "").split(".")[0].rpartition("Z")[2]
    trace = found.named(row.get("trace_id") or order or (None if parent else ident) or ident, at)
    extra = mapping(mapping(row.get("extra")).get("metadata"))
    if not parent and row.get("name"):
        trace.task = str(row["name"])
    for tag, value in (
        ("session", first(extra, "session_id", "thread_id", "conversation_id")),
        ("user", extra.get("user_id")),
        ("project", row.get("session_name")),
    ):
        if value is not None:
            trace.tags[tag] = str(value)
    for label in listed(row.get("tags")):
        trace.tags[str(label)] = "yes"
    trace.parent(ident, parent)
    _feedback(trace, row, not parent, place)
    if row.get("run_type") == MODEL_CALL:
        if row.get("error"):
            place.drop("a model call", "it failed")
        else:
            trace.call(ident, parent, _call(row, place))
    for child in map(mapping, listed(row.get("child_runs"))):
        _take(found, {"trace_id": trace.id, **child}, ident, place, at)


def _feedback(trace: Trace, row: Mapping[str, Value], of_trace: bool, place: Place) -> None:
    for name, told in mapping(row.get("feedback_stats")).items():
        mean = place.score(mapping(told).get("avg"), f"feedback {name}")
        if mean is not None:
            trace.scores.append((name, mean, of_trace))
        else:
            place.drop(f"feedback {name}", "it has no mean that is a number")
    trace.scores += _scores(listed(row.get("feedback")), of_trace, place)


def _scores(feedback: Iterable[Value], of_trace: bool, place: Place) -> Iterator[tuple[str, float, bool]]:
    """Name and value of each that is a number; the others are told."""
    for told in map(mapping, feedback):
        name = str(told.get("key") or "feedback")
        value = told.get("score")
        read = float(value) if isinstance(value, bool) else place.score(value, f"feedback {name}")
        if read is not None:
            yield name, read, of_trace
        elif value is None:
            place.drop(f"feedback {name}", "it has no score that is a number")


def _call(row: Mapping[str, Value], place: Place) -> ModelCall:
    inputs, outputs = mapping(row.get("inputs")), mapping(row.get("outputs"))
    extra = mapping(row.get("extra"))
    asked, about = mapping(extra.get("invocation_params")), mapping(extra.get("metadata"))
    messages, tools = sent_of(inputs, place)
    tools = tools or [tool_of(t) for t in listed(asked.get("tools"))] or None
    at = place.time(row.get("start_time"), "start_time")
    end = place.time(row.get("end_time"), "end_time")
    llm = mapping(outputs.get("llm_output"))
    generations = listed(outputs.get("generations"))
    said = mapping(next(iter(listed(next(iter(generations), None))), None)).get("message")
    own = mapping(mapping(said).get("kwargs")).get("usage_metadata")
    counts = usage_of(
        *(row, about.get("usage_metadata"), outputs.get("usage_metadata"), llm.get("token_usage")),
        *(outputs.get("usage"), own),
    )
    model = about.get("ls_model_name") or first(asked, "model", "model_name") or first(inputs, "model")
    told = Told.between(at, end, counts, model)
    return ModelCall(messages, replies_of(outputs, messages, place), told, tools)
