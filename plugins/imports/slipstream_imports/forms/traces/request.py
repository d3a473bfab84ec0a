"""Rows with a request and its response, of OpenAI's chat completions or Responses, Anthropic's or Gemini's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, listed, mapping
from slipstream_imports.fields import described, json_in
from slipstream_imports.forms.datasets.openai import tools_in
from slipstream_imports.records import LogRun, ModelCall, Told
from slipstream_imports.registry import each
from slipstream_imports.traces import replies_of, sent_of, usage_of

GATHERS_ROWS = False
REQUEST_REPLY_FIELDS = (
    ("request", "response"),
    ("request_body", "response_body"),
    ("requestBody", "responseBody"),
    ("reqPayload", "respPayload"),
)
OF_PAIRS = frozenset(name for pair in REQUEST_REPLY_FIELDS for name in pair)
TIME_FIELDS = frozenset({"seconds", "duration", "latency", "latency_ms", "duration_ms", "created_at", "timestamp"})


def is_one(row: Mapping[str, Value]) -> bool:
    return any(a in row and b in row for a, b in REQUEST_REPLY_FIELDS)


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    a, b = next(((a, b) for a, b in REQUEST_REPLY_FIELDS if a in row and b in row), REQUEST_REPLY_FIELDS[0])
    if a not in row or b not in row:
        raise Refused("it has no request and response")
    request, response = body_of(row[a], a), body_of(row[b], b)
    run = described(row, place, read=OF_PAIRS | TIME_FIELDS)
    call = asked(request, response, place)
    if run.at is None and (at := first(row, "created_at", "timestamp")) is not None:
        run.at = place.time(at, "created_at")
    if call.told.seconds is None:
        for name in ("seconds", "duration", "latency", "duration_ms", "latency_ms"):
            if isinstance(row.get(name), int | float):
                call.told.seconds = max(0.0, place.number(row[name], name)) / (1000.0 if name.endswith("_ms") else 1.0)
    run.model = run.model or call.told.model
    run.calls = [call]
    yield run


def body_of(value: Value, field: str) -> dict[str, Value]:
    """A request's or a response's body, out of the frame that some logs put around it. Raises ``Refused``."""
    told = json_in(value, field)
    if not isinstance(told, Mapping):
        raise Refused("request and response are no chat completion: an object is needed", field)
    inner = mapping(told.get("body"))
    return inner or mapping(told)


def asked(request: Mapping[str, Value], response: Mapping[str, Value], place: Place) -> ModelCall:
    """A call of what was sent and of what came back. Raises ``Refused`` if that is none."""
    messages, tools = sent_of({k: v for k, v in request.items() if k not in ("role", "from")}, place)
    replies = replies_of(response, messages, place)
    if not messages or not replies:
        what = "the request has no messages" if not messages else "the response has no reply"
        error = mapping(response.get("error")).get("message")
        raise Refused(f"request and response are no chat completion: {what}" + (f": {error}" if error else ""))
    created = first(response, "created", "created_at")
    at = place.time(created, "created")
    model = first(request, "model") or first(response, "model", "modelVersion")
    tools = tools or tools_in({"functions": listed(request.get("functions"))})
    usage = usage_of(first(response, "usage", "usageMetadata", "usage_metadata"))
    return ModelCall(messages, replies, Told(at, None, *usage, str(model) if model else None), tools)
