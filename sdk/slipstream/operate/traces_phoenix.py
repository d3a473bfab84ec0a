"""Exports of Phoenix: spans with OpenInference attributes, as rows of a data frame or as its API has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.operate.traces import (
    ROLES,
    Message,
    ModelCall,
    Trace,
    Value,
    in_order,
    listed,
    mapping,
    messages_of,
    nested,
    number_of,
    parsed,
    text_of,
    time_of,
    tool_call,
)

MODEL_CALL = "LLM"


def is_phoenix(row: Mapping[str, Value]) -> bool:
    """Whether a row of a file is a span of Phoenix."""
    if "context.trace_id" in row or any(name.startswith("attributes.llm.") for name in row):
        return True
    return "span_kind" in row or "openinference.span.kind" in mapping(row.get("attributes"))


def traces(rows: Sequence[Mapping[str, Value]]) -> list[Trace]:
    found: dict[str, Trace] = {}
    for flat in rows:
        row = nested({k: v for k, v in flat.items() if v is not None})
        context, attributes = mapping(row.get("context")), mapping(row.get("attributes"))
        name = str(context.get("trace_id") or row.get("trace_id"))
        trace = found.setdefault(name, Trace(name))
        if not row.get("parent_id") and row.get("name"):
            trace.task = str(row["name"])
        for tag in ("session", "user"):
            if value := mapping(attributes.get(tag)).get("id"):
                trace.tags[tag] = str(value)
        for score in [*listed(row.get("annotations")), *listed(row.get("span_annotations"))]:
            _score(trace, mapping(score))
        if (call := openinference_call(attributes, time_of(row.get("start_time")))) is not None:
            trace.calls.append(call)
    return list(found.values())


def _score(trace: Trace, score: Mapping[str, Value]) -> None:
    value = number_of(mapping(score.get("result")).get("score", score.get("score")))
    if score.get("name") and value is not None:
        trace.scores[str(score["name"])] = value


def openinference_call(attributes: Mapping[str, Value], at: float | None) -> ModelCall | None:
    """``attributes``, nested. None: the span is no model call, or its messages were not recorded."""
    llm = mapping(attributes.get("llm"))
    kind = mapping(mapping(attributes.get("openinference")).get("span")).get("kind")
    if not llm and kind != MODEL_CALL:
        return None
    sent = [_message(m, "user") for m in in_order(llm.get("input_messages"))]
    replies = [_message(m, "assistant") for m in in_order(llm.get("output_messages"))]
    if not sent:
        sent = messages_of(mapping(attributes.get("input")).get("value"), "user")
    if not replies:
        replies = messages_of(mapping(attributes.get("output")).get("value"), "assistant")
    if not sent or not replies:
        return None
    tools = [_tool(t) for t in in_order(llm.get("tools"))]
    model = llm.get("model_name")
    return ModelCall(at, sent, replies[0], str(model) if model else None, tools or None)


def _message(item: Mapping[str, Value], role: str) -> Message:
    own = mapping(item.get("message")) or item
    named = str(own.get("role") or role)
    content = own.get("content")
    if content is None:
        parts = [mapping(p.get("message_content")) or p for p in in_order(own.get("contents"))]
        content = "\n".join(text_of(p["text"]) for p in parts if p.get("text") is not None) or None
    made: Message = {"role": ROLES.get(named, named), "content": content}
    calls = []
    for part in in_order(own.get("tool_calls")):
        call = mapping(part.get("tool_call")) or part
        function = mapping(call.get("function"))
        calls.append(tool_call(call.get("id"), function.get("name"), function.get("arguments")))
    made |= {"tool_calls": calls} if calls else {}
    return made | {k: own[k] for k in ("tool_call_id", "name") if own.get(k)}


def _tool(item: Mapping[str, Value]) -> Value:
    tool = mapping(item.get("tool")) or item
    return parsed(tool.get("json_schema")) or tool
