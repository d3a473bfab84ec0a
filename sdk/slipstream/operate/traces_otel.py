"""OpenTelemetry spans with GenAI attributes, as OTLP JSON. Messages are attributes, events or numbered names."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slipstream.operate.traces import (
    ROLES,
    Message,
    ModelCall,
    Trace,
    Value,
    in_order,
    listed,
    mapping,
    message_of,
    nested,
    parsed,
    text_of,
    time_of,
    tool_call,
)
from slipstream.operate.traces_phoenix import openinference_call

EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
"""Events of before the messages became attributes → the role."""
LABELS = {"user": ("enduser.id", "user.id"), "agent": ("gen_ai.agent.name",), "session": ("session.id",)}


def is_otel(row: Mapping[str, Value]) -> bool:
    """Whether a row of a file is OTLP's JSON, or one span of it."""
    if any(name in row for name in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans")):
        return True
    return ("traceId" in row or "trace_id" in row) and ("startTimeUnixNano" in row or "start_time_unix_nano" in row)


def traces(rows: Sequence[Mapping[str, Value]]) -> list[Trace]:
    """All traces of a file; spans of one conversation (``gen_ai.conversation.id``) are one."""
    found: dict[str, Trace] = {}
    for span in _spans(rows):
        attributes = _attributes(span.get("attributes"))
        name = str(attributes.get("gen_ai.conversation.id") or _hex(span.get("traceId") or span.get("trace_id")))
        trace = found.setdefault(name, Trace(name))
        if (task := attributes.get("slipstream.task")) or (
            not (span.get("parentSpanId") or span.get("parent_span_id")) and (task := span.get("name"))
        ):
            trace.task = trace.task or str(task)
        for tag, names in LABELS.items():
            if value := next((attributes[n] for n in names if attributes.get(n)), None):
                trace.tags[tag] = str(value)
        _scores(trace, span)
        if (call := call_of(span, attributes)) is not None:
            trace.calls.append(call)
    return list(found.values())


def _spans(rows: Iterable[Mapping[str, Value]]) -> Iterator[Mapping[str, Value]]:
    for row in rows:
        below = [row.get(name) for name in ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans")]
        if any(isinstance(part, list) for part in below):
            yield from _spans(mapping(item) for part in below for item in listed(part))
        else:
            yield row


def _plain(value: Value) -> Value:
    """A value of OTLP's JSON, ``{"stringValue": …}``."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    kind = str(kind).replace("_v", "V")
    if kind == "intValue":
        return int(str(inner))
    if kind == "arrayValue":
        return [_plain(v) for v in listed(mapping(inner).get("values"))]
    if kind == "kvlistValue":
        return _attributes(mapping(inner).get("values"))
    return inner if kind in ("stringValue", "doubleValue", "boolValue") else value


def _attributes(value: Value) -> dict[str, Value]:
    if isinstance(value, Mapping):
        return mapping(value)
    return {str(a["key"]): _plain(a.get("value")) for a in map(mapping, listed(value)) if "key" in a}


def _hex(value: Value) -> str:
    """A trace's id: hex in OTLP's JSON, base64 where protobuf's own mapping wrote it."""
    text = str(value)
    if len(text) == 24 and text.endswith("="):
        return base64.b64decode(text).hex()
    return text


def call_of(span: Mapping[str, Value], attributes: Mapping[str, Value]) -> ModelCall | None:
    """A span's model call; None: it is another kind of span, or its messages were not recorded."""
    sent, replies = _as_attributes(attributes)
    if not replies:
        sent, replies = _as_events(span)
    if not replies:
        sent, replies = _as_numbers(attributes)
    at = time_of(span.get("startTimeUnixNano") or span.get("start_time_unix_nano"))
    if not replies:
        return openinference_call(nested(attributes), at)
    model = attributes.get("gen_ai.request.model") or attributes.get("gen_ai.response.model")
    tools = listed(attributes.get("gen_ai.tool.definitions"))
    return ModelCall(at, sent, replies[0], str(model) if model else None, tools or None)


def _as_attributes(attributes: Mapping[str, Value]) -> tuple[list[Message], list[Message]]:
    """``gen_ai.input.messages`` and their like: messages with parts."""
    sent = [m for item in listed(attributes.get("gen_ai.input.messages")) for m in _of_parts(mapping(item), "user")]
    system = listed(attributes.get("gen_ai.system_instructions"))
    if system:
        sent = [*_of_parts({"role": "system", "parts": system}, "system"), *sent]
    replies = [
        m for item in listed(attributes.get("gen_ai.output.messages")) for m in _of_parts(mapping(item), "assistant")
    ]
    return sent, replies


def _of_parts(message: Mapping[str, Value], role: str) -> Iterator[Message]:
    """A message's texts and tool calls are one message; each answer of a tool is one of its own."""
    if "parts" not in message:
        if (plain := message_of(message, role)) is not None:
            yield plain
        return
    named = str(message.get("role") or role)
    texts: list[str] = []
    calls: list[Value] = []
    for part in map(mapping, listed(message["parts"])):
        kind = part.get("type")
        if kind == "tool_call":
            calls.append(tool_call(part.get("id"), part.get("name"), part.get("arguments")))
        elif kind == "tool_call_response":
            answer = part.get("response", part.get("result"))
            yield {"role": "tool", "tool_call_id": text_of(part.get("id") or ""), "content": text_of(answer)}
        elif kind != "reasoning" and part.get("content") is not None:
            texts.append(text_of(part["content"]))
    if texts or calls:
        made: Message = {"role": ROLES.get(named, named), "content": "\n".join(texts) if texts else None}
        yield made | ({"tool_calls": calls} if calls else {})


def _as_events(span: Mapping[str, Value]) -> tuple[list[Message], list[Message]]:
    sent: list[Message] = []
    replies: list[Message] = []
    for event in map(mapping, listed(span.get("events"))):
        attributes = _attributes(event.get("attributes"))
        name = str(event.get("name"))
        if name == "gen_ai.choice":
            found, role = replies, "assistant"
        elif name in EVENTS:
            found, role = sent, EVENTS[name]
        elif name == "gen_ai.client.inference.operation.details":
            return _as_attributes(attributes)
        else:
            continue
        body = {k.removeprefix("gen_ai."): parsed(v) for k, v in attributes.items()} | mapping(event.get("body"))
        message = message_of(body.get("message") or body, role)
        if message is not None:
            found.append(message | ({"tool_call_id": body["id"]} if role == "tool" and body.get("id") else {}))
    return sent, replies


def _as_numbers(attributes: Mapping[str, Value]) -> tuple[list[Message], list[Message]]:
    """``gen_ai.prompt.0.role``, as OpenLLMetry writes them."""
    told = mapping(nested(attributes).get("gen_ai"))
    return [_numbered(m, "user") for m in in_order(told.get("prompt"))], [
        _numbered(m, "assistant") for m in in_order(told.get("completion"))
    ]


def _numbered(message: Mapping[str, Value], role: str) -> Message:
    named = str(message.get("role") or role)
    made: Message = {"role": ROLES.get(named, named), "content": message.get("content")}
    calls = [tool_call(c.get("id"), c.get("name"), c.get("arguments")) for c in in_order(message.get("tool_calls"))]
    if message.get("tool_call_id"):
        made["tool_call_id"] = message["tool_call_id"]
    return made | ({"tool_calls": calls} if calls else {})


def _scores(trace: Trace, span: Mapping[str, Value]) -> None:
    """Events ``gen_ai.evaluation.result``."""
    for event in map(mapping, listed(span.get("events"))):
        if event.get("name") == "gen_ai.evaluation.result":
            told = _attributes(event.get("attributes"))
            value = told.get("gen_ai.evaluation.score.value")
            if isinstance(value, int | float):
                trace.scores[str(told.get("gen_ai.evaluation.name") or "evaluation")] = float(value)
