"""Phoenix: spans with OpenInference attributes, as rows of a data frame or as its API has them."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_chat.inputs import tool_of
from slipstream_chat.messages import Message, expand
from slipstream_chat.report import Place, Value
from slipstream_chat.values import first, in_order, listed, mapping, nested, parsed, text_of, whole
from slipstream_imports.records import ModelCall, Told
from slipstream_imports.rows import LogRow
from slipstream_imports.traces import Late, Traces, gathered, replies_of, sent_of

GATHERS_ROWS = True
MODEL_CALL = "LLM"


def is_one(row: Mapping[str, Value]) -> bool:
    if "context.trace_id" in row or any(str(name).startswith("attributes.llm.") for name in row):
        return True
    if _is_annotation(row) or _spans(row):
        return True
    return "span_kind" in row or "spanKind" in row or "openinference.span.kind" in mapping(row.get("attributes"))


def _is_annotation(row: Mapping[str, Value]) -> bool:
    """A row of Phoenix' annotations, which name their span or trace."""
    return "annotator_kind" in row and ("span_id" in row or "trace_id" in row)


def _spans(row: Mapping[str, Value]) -> list[Value]:
    """Of a trace as the command line of Phoenix prints it, its spans."""
    spans = listed(row.get("spans")) if "traceId" in row or "trace_id" in row else []
    first = mapping(spans[0]) if spans else {}
    return spans if "span_kind" in first or "spanKind" in first or "span_id" in mapping(first.get("context")) else []


@gathered("phoenix")
def runs(found: Traces, flat: LogRow, place: Place) -> None:
    if spans := _spans(flat.value):
        ident = first(flat.value, "traceId", "trace_id")
        for span in map(mapping, spans):
            _span(found, flat._replace(value={"trace_id": ident, **span}), place)
        notes = [*listed(flat.value.get("annotations")), *listed(flat.value.get("trace_annotations"))]
        trace = found.named(ident, flat)
        trace.scores += filter(None, [_score(mapping(score), True, place) for score in notes])
    else:
        _span(found, flat, place)


def _span(found: Traces, flat: LogRow, place: Place) -> None:
    if _is_annotation(flat.value):
        if (said := _score(flat.value, True, place)) is not None:
            found.late.append(Late((flat.value.get("span_id"), flat.value.get("trace_id")), *said, place))
        return
    row = nested({k: v for k, v in flat.value.items() if v is not None})
    context, attributes = mapping(row.get("context")), mapping(row.get("attributes"))
    ident = context.get("trace_id") or context.get("traceId") or row.get("trace_id") or row.get("traceId")
    span = str(context.get("span_id") or context.get("spanId") or row.get("span_id") or row.get("id") or "")
    trace = found.named(ident or span, flat)
    parent = row.get("parent_id") or row.get("parentId")
    if not parent and row.get("name") and (trace.task is None or attributes.get("llm") is None):
        trace.task = str(row["name"])
    for tag in ("session", "user"):
        if value := mapping(attributes.get(tag)).get("id"):
            trace.tags[tag] = str(value)
    for score in [*listed(row.get("annotations")), *listed(row.get("span_annotations"))]:
        trace.scores += filter(None, [_score(mapping(score), not parent, place)])
    trace.parent(span, parent)
    times = (
        place.time(row.get("start_time", row.get("startTime")), "start_time"),
        place.time(row.get("end_time", row.get("endTime")), "end_time"),
    )
    kind = str(row.get("span_kind") or row.get("spanKind") or "").upper() or None
    if (call := openinference_call(attributes, times, place, kind)) is not None:
        trace.call(span, parent, call)


def _score(score: Mapping[str, Value], of_trace: bool, place: Place) -> tuple[str, float, bool] | None:
    """Name, value, and whether it is of the whole trace. None: it is no number, which is told."""
    name = str(score.get("name") or "annotation")
    value = mapping(score.get("result")).get("score", score.get("score"))
    if value is None:
        place.drop(f"annotation {name}", "it has a label and no score")
    read = place.score(value, f"annotation {name}")
    return None if read is None else (name, read, of_trace)


def openinference_call(
    attributes: Mapping[str, Value], times: tuple[float | None, float | None], place: Place, kind: str | None = None
) -> ModelCall | None:
    """``attributes``, nested. None: the span is no model call."""
    llm = mapping(attributes.get("llm"))
    kind = str(mapping(mapping(attributes.get("openinference")).get("span")).get("kind") or kind or "").upper() or None
    if kind not in (MODEL_CALL, None) or (not llm and kind != MODEL_CALL):
        return None
    sent = [m for item in in_order(llm.get("input_messages")) for m in _message(item, "user", place)]
    replies = [m for item in in_order(llm.get("output_messages")) for m in _message(item, "assistant", place)]
    tools = [_tool(t) for t in in_order(llm.get("tools"))]
    if not sent:
        sent, more = sent_of(_value(attributes.get("input")), place)
        tools = tools or more or []
    if not replies:
        replies = replies_of(_value(attributes.get("output")), sent, place)
    count = mapping(llm.get("token_count"))
    counts = whole(count.get("prompt")), whole(count.get("completion"))
    told = Told.between(*times, counts, llm.get("model_name"))
    return ModelCall(sent, replies, told, tools or None)


def _value(told: Value) -> Value:
    """``input.value``, which ``nested`` has read already where it is JSON."""
    return mapping(told).get("value")


def _message(item: Mapping[str, Value], role: str, place: Place) -> list[Message]:
    own = mapping(item.get("message")) or dict(item)
    if own.get("contents") is not None and own.get("content") is None:
        own["content"] = [_part(mapping(p.get("message_content")) or p) for p in in_order(own["contents"])]
    own.pop("contents", None)
    calls = [mapping(part.get("tool_call")) or part for part in in_order(own.get("tool_calls"))]
    if calls:
        own["tool_calls"] = calls
    if own.get("function_call_name"):
        name, arguments = own.pop("function_call_name"), own.pop("function_call_arguments_json", None)
        own["tool_calls"] = [{"function": {"name": name, "arguments": arguments}}]
    if isinstance(own.get("content"), Mapping):  # JSON in a text, which is what was said
        own["content"] = text_of(own["content"])
    own.setdefault("role", role)
    return expand(own, role, place)


def _part(part: Mapping[str, Value]) -> Value:
    image = mapping(mapping(part.get("image")).get("image")) or mapping(part.get("image"))
    if part.get("type") == "image" and image.get("url"):
        return {"type": "image_url", "image_url": {"url": image["url"]}}
    return {**part, "type": "text"} if part.get("text") is not None and part.get("type") is None else part


def _tool(item: Mapping[str, Value]) -> Value:
    tool = mapping(item.get("tool")) or item
    return tool_of(parsed(tool.get("json_schema")) or tool)
