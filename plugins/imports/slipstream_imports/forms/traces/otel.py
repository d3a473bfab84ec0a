"""OpenTelemetry spans with GenAI attributes, as OTLP JSON. Messages are attributes, events or numbered names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slipstream_chat.inputs import tool_of
from slipstream_chat.messages import Message, expand
from slipstream_chat.report import Place, Report, Value
from slipstream_chat.values import first, in_order, listed, mapping, nested, parsed
from slipstream_imports.forms.traces.phoenix import openinference_call
from slipstream_imports.records import LogRun, ModelCall, Told
from slipstream_imports.registry import guarded
from slipstream_imports.rows import LogRow
from slipstream_imports.traces import Trace, Traces, replies_of, sent_of, usage_of

GATHERS_ROWS = True
EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
"""Events of before the messages became attributes → the role."""
FRAME_FIELDS = (
    *("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "instrumentationLibrarySpans"),
    *("resourceLogs", "resource_logs", "scopeLogs", "scope_logs", "logRecords", "log_records", "batches", "spans"),
)
TRACE_ANSWER_FIELDS = ("trace", "result")
"""Under which the API of a store of traces (Tempo, Jaeger) has a trace in OTLP."""
FRAMES_SET = frozenset(FRAME_FIELDS)
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
"""The event that has all messages of a call."""
LABEL_ATTRIBUTES = {"user": ("enduser.id", "user.id"), "agent": ("gen_ai.agent.name",), "session": ("session.id",)}
EVENT_META_FIELDS = ("system", "event.name", "message.index")
"""What an event says of itself."""
EVALUATION_EVENTS = ("gen_ai.evaluation.result", "gen_ai.evaluation")
SpanKey = tuple[str, str]
"""Ids of trace and span."""
Said = tuple[list[Message], list[Message]]


def is_one(row: Mapping[str, Value]) -> bool:
    """OTLP's JSON, or one span of it."""
    if any(name in row for name in FRAME_FIELDS[:-1]) or ("traceID" in row and "spans" in row):
        return True
    if any(
        not FRAMES_SET.isdisjoint(mapping(row[name]))
        for name in TRACE_ANSWER_FIELDS
        if isinstance(row.get(name), Mapping)
    ):
        return True
    if any(name in row for name in ("startTimeUnixNano", "start_time_unix_nano")):
        return True
    attributes = row.get("attributes")
    return isinstance(attributes, Mapping) and any(str(n).startswith("gen_ai.") for n in attributes)


def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
    """All traces of a file; spans of one conversation (``gen_ai.conversation.id``) are one."""
    gathered = _Gathered()
    for row in rows:
        place = Place(report, row.where)
        for span in _spans(row.value):
            with guarded(place):
                gathered.take(span, place, row)
    yield from gathered.whole().runs("otel", report)


@dataclass(slots=True)
class _Gathered:
    """Spans on their way to traces. What says more of a span, or of its trace, may come later."""

    found: Traces = field(default_factory=Traces)
    bare: dict[SpanKey, tuple[Mapping[str, Value], Place, LogRow]] = field(default_factory=dict)
    """Model calls without messages, which log records may have."""
    records: dict[SpanKey, list[Mapping[str, Value]]] = field(default_factory=dict)
    places: dict[SpanKey, tuple[Place, LogRow]] = field(default_factory=dict)
    talks: dict[str, set[str]] = field(default_factory=dict)
    """Trace → the conversations that its spans name."""

    def take(self, span: Mapping[str, Value], place: Place, row: LogRow) -> None:
        key = _key(span)
        if _is_record(span):
            self.records.setdefault(key, []).append(_event(span))
            self.places.setdefault(key, (place, row))
            return
        attributes = _attributes(span.get("attributes"))
        if talk := attributes.get("gen_ai.conversation.id"):
            self.talks.setdefault(key[0], set()).add(str(talk))
        if not _span(self.found, span, attributes, place, row):
            self.bare[key] = (span, place, row)

    def whole(self) -> Traces:
        for key, events in self.records.items():
            alone = {"traceId": key[0], "spanId": key[1], "startTimeUnixNano": events[0].get("timeUnixNano")}
            span, place, row = self.bare.pop(key, (alone, *self.places[key]))
            told = [*listed(span.get("events")), *events]
            if (trace := self.found.get(key[0])) is not None and key[1] in trace.calls:  # its own messages are read
                told = [e for e in told if str(mapping(e).get("name")) in EVALUATION_EVENTS]
            with guarded(place):
                _span(self.found, {**span, "events": told}, _attributes(span.get("attributes")), place, row)
        for _, place, _ in self.bare.values():
            place.drop("a model call", "its messages were not recorded")
        for name, talks in self.talks.items():
            if len(talks) == 1:  # its other spans do not name it, but they are of the same run
                self.found.join(name, *talks)
        return self.found


def _key(span: Mapping[str, Value]) -> SpanKey:
    context = mapping(span.get("context"))
    ident = _hex(first(span, "spanId", "span_id", "spanID") or context.get("span_id") or "")
    return _hex(first(span, "traceId", "trace_id", "traceID") or context.get("trace_id") or ident), ident


def _span(found: Traces, span: Mapping[str, Value], attributes: Mapping[str, Value], place: Place, row: LogRow) -> bool:
    """False: it is a model call, and its messages are not in it."""
    name, ident = _key(span)
    trace = found.named(attributes.get("gen_ai.conversation.id") or name, row)
    parent = first(span, "parentSpanId", "parent_span_id", "parent_id")
    task = attributes.get("slipstream.task") or (None if parent else first(span, "name", "operationName"))
    trace.task = trace.task or (str(task) if task else None)
    for tag, names in LABEL_ATTRIBUTES.items():
        if value := next((attributes[n] for n in names if attributes.get(n)), None):
            trace.tags[tag] = str(value)
    trace.parent(ident, _hex(parent) if parent else None)
    _scores(trace, span, place)
    if (call := call_of(span, attributes, place)) is not None:
        trace.call(ident, _hex(parent) if parent else None, call)
    return call is not None or attributes.get("gen_ai.operation.name") not in MODEL_CALLS


def _spans(row: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
    if "traceID" in row:
        yield from map(_of_jaeger, map(mapping, listed(row.get("spans"))))
        return
    row = next(
        (inner for name in TRACE_ANSWER_FIELDS if not FRAMES_SET.isdisjoint(inner := mapping(row.get(name)))), row
    )
    below = [row.get(name) for name in FRAME_FIELDS]
    if any(isinstance(part, list) for part in below):
        for part in below:
            for item in listed(part):
                yield from _spans(mapping(item))
    else:
        yield row


def _is_record(row: Mapping[str, Value]) -> bool:
    return any(name in row for name in ("severityNumber", "eventName", "event_name", "timeUnixNano", "time_unix_nano"))


def _event(record: Mapping[str, Value]) -> Mapping[str, Value]:
    """A log record as the span's event that it was before events became logs."""
    attributes = _attributes(record.get("attributes"))
    name = first(record, "eventName", "event_name") or attributes.pop("event.name", None)
    at = first(record, "timeUnixNano", "time_unix_nano")
    return {"name": name, "attributes": attributes, "body": _plain(record.get("body")), "timeUnixNano": at}


def _of_jaeger(span: Mapping[str, Value]) -> Mapping[str, Value]:
    """A span of Jaeger's own JSON: microseconds, and attributes as tags."""
    begin, took = span.get("startTime"), span.get("duration")
    parents = [mapping(r) for r in listed(span.get("references"))]
    made = {
        **span,
        "parentSpanId": next((r.get("spanID") for r in parents if r.get("refType") != "FOLLOWS_FROM"), None),
    }
    if isinstance(begin, int) and isinstance(took, int):
        made |= {"startTimeUnixNano": begin * 1000, "endTimeUnixNano": (begin + took) * 1000}
    made["attributes"] = _attributes(span.get("tags"))
    logs = [_attributes(mapping(log).get("fields")) for log in listed(span.get("logs"))]
    return made | {"events": [{"name": log.get("event") or log.get("name"), "attributes": log} for log in logs]}


def _plain(value: Value) -> Value:
    """A value of OTLP's JSON, ``{"stringValue": …}``."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    kind = str(kind).replace("_v", "V")
    if kind == "intValue":
        return int(str(inner)) if str(inner).lstrip("-").isdecimal() else inner
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
    """An id: hex in OTLP's JSON, base64 where protobuf's own mapping wrote it."""
    text = str(value)
    if len(text) in (12, 24) and text.endswith("="):
        try:
            return base64.b64decode(text, validate=True).hex()
        except binascii.Error:
            return text
    return text.removeprefix("0x")


MODEL_CALLS = ("chat", "text_completion", "generate_content", "completion", "message")
OTHER_OPERATIONS = (
    "invoke_agent",
    "create_agent",
    "execute_tool",
    "embeddings",
    "invoke_workflow",
    "retrieval",
    "rerank",
)


def call_of(span: Mapping[str, Value], attributes: Mapping[str, Value], place: Place) -> ModelCall | None:
    """A span's model call; None: it is another kind of span, or its messages were not recorded."""
    operation = str(attributes.get("gen_ai.operation.name") or "")
    vercel = str(attributes.get("ai.operationId") or "")
    if operation in OTHER_OPERATIONS or (vercel and not vercel.endswith((".doGenerate", ".doStream"))):
        return None
    at = place.time(first(span, "startTimeUnixNano", "start_time_unix_nano", "start_time"), "startTimeUnixNano")
    end = place.time(first(span, "endTimeUnixNano", "end_time_unix_nano", "end_time"), "endTimeUnixNano")
    if any(n.startswith(("llm.input_messages", "llm.output_messages", "openinference.")) for n in attributes):
        return openinference_call(nested(attributes), (at, end), place)
    ways = (
        _as_attributes(attributes, place),
        _as_events(span, attributes, place),
        _as_numbers(attributes, place),
        _as_vercel(attributes, place),
        _as_langfuse(attributes, place),
    )
    sent, replies = next((said for said in ways if said[1]), next((said for said in ways if said[0]), ([], [])))
    if not replies and not sent:
        return None
    told = nested({k: v for k, v in attributes.items() if ".usage." in k or k.startswith("llm.usage")})
    usage = mapping(mapping(told.get("gen_ai")).get("usage"))
    counts = usage_of(
        usage, mapping(mapping(told.get("llm")).get("usage")), mapping(mapping(told.get("ai")).get("usage"))
    )
    model = first(
        attributes, "gen_ai.request.model", "gen_ai.response.model", "ai.model.id", "langfuse.observation.model.name"
    )
    tools = [tool_of(t) for t in listed(attributes.get("gen_ai.tool.definitions"))]
    tools = tools or [tool_of(t) for t in listed(attributes.get("ai.prompt.tools"))] or _numbered_tools(attributes)
    return ModelCall(sent, replies, Told.between(at, end, counts, model), tools or None)


def _as_attributes(attributes: Mapping[str, Value], place: Place) -> Said:
    """``gen_ai.input.messages`` and their like: messages with parts."""
    sent, _ = sent_of(first(attributes, "gen_ai.input.messages", "gen_ai.prompt"), place)
    system = parsed(attributes.get("gen_ai.system_instructions"))
    if system:
        said = {"role": "system", "parts" if isinstance(system, list) else "content": system}
        sent = [*expand(said, "system", place), *sent]
    return sent, replies_of(first(attributes, "gen_ai.output.messages", "gen_ai.completion"), sent, place)


def _as_vercel(attributes: Mapping[str, Value], place: Place) -> Said:
    """The Vercel AI SDK's own attributes."""
    sent, _ = sent_of(first(attributes, "ai.prompt.messages", "ai.prompt"), place)
    text, calls = attributes.get("ai.response.text"), listed(attributes.get("ai.response.toolCalls"))
    if text is None and not calls:
        return sent, []
    return sent, expand({"role": "assistant", "content": text or None, "toolCalls": calls}, "assistant", place)


def _as_langfuse(attributes: Mapping[str, Value], place: Place) -> Said:
    """The attributes of Langfuse's own SDK."""
    if attributes.get("langfuse.observation.type") != "generation":
        return [], []
    sent, _ = sent_of(attributes.get("langfuse.observation.input"), place)
    return sent, replies_of(attributes.get("langfuse.observation.output"), sent, place)


def _as_events(span: Mapping[str, Value], own: Mapping[str, Value], place: Place) -> Said:
    """Events of the span, or in Pydantic AI's attribute of this name."""
    sent: list[Message] = []
    replies: list[Message] = []
    told = [{"name": e.get("event.name"), "body": e} for e in map(mapping, listed(own.get("events")))]
    for event in map(mapping, listed(span.get("events")) or told):
        attributes = _attributes(event.get("attributes"))
        name = str(event.get("name"))
        if name == DETAILS_EVENT:
            return _as_attributes(attributes, place)
        if name == "gen_ai.choice":
            found, role = replies, "assistant"
        elif name in EVENT_ROLES:
            found, role = sent, EVENT_ROLES[name]
        elif name in ("gen_ai.content.prompt", "gen_ai.content.completion"):
            value = attributes.get("gen_ai.prompt", attributes.get("gen_ai.completion"))
            (sent if name.endswith("prompt") else replies).extend(
                sent_of(value, place)[0] if name.endswith("prompt") else replies_of(value, sent, place)
            )
            continue
        else:
            continue
        said = {**attributes, **mapping(event.get("body"))}
        body = {k.removeprefix("gen_ai."): parsed(v) for k, v in said.items()}
        inner = mapping(body.get("message")) or {k: v for k, v in body.items() if k not in EVENT_META_FIELDS}
        if role == "tool" and body.get("id"):
            inner = {**inner, "tool_call_id": body["id"]}
        found += expand(
            {"role": role, **{k: v for k, v in inner.items() if k not in ("index", "finish_reason")}}, role, place
        )
    return sent, [m for m in replies if m["role"] == "assistant"]


def _as_numbers(attributes: Mapping[str, Value], place: Place) -> Said:
    """``gen_ai.prompt.0.role``, as OpenLLMetry writes them."""
    flat = {k: v for k, v in attributes.items() if k.startswith(("gen_ai.prompt.", "gen_ai.completion."))}
    told = mapping(nested(flat).get("gen_ai"))
    return _numbered(told.get("prompt"), "user", place), _numbered(told.get("completion"), "assistant", place)


def _numbered(value: Value, role: str, place: Place) -> list[Message]:
    found: list[Message] = []
    for item in in_order(value):
        calls = in_order(item.get("tool_calls"))
        own = {k: v for k, v in item.items() if k not in ("tool_calls", "finish_reason")} | (
            {"tool_calls": calls} if calls else {}
        )
        found += expand({"role": role, **own}, role, place)
    return found


def _numbered_tools(attributes: Mapping[str, Value]) -> list[Value]:
    flat = {k: v for k, v in attributes.items() if k.startswith("llm.request.functions.")}
    return [
        tool_of(t) for t in in_order(mapping(mapping(mapping(nested(flat)).get("llm")).get("request")).get("functions"))
    ]


def _scores(trace: Trace, span: Mapping[str, Value], place: Place) -> None:
    """Events ``gen_ai.evaluation.result``."""
    for event in map(mapping, listed(span.get("events"))):
        if event.get("name") in EVALUATION_EVENTS:
            told = _attributes(event.get("attributes"))
            name = str(told.get("gen_ai.evaluation.name") or "evaluation")
            value = place.score(
                first(told, "gen_ai.evaluation.score.value", "gen_ai.evaluation.score"), f"evaluation {name}"
            )
            if value is not None:
                trace.scores.append((name, value, True))
            else:
                place.drop(f"evaluation {name}", "it has no score that is a number")
