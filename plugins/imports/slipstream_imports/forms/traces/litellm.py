"""LiteLLM: its standard logging payload and its spend logs. Calls of one trace or session are one episode."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_chat.inputs import tool_of
from slipstream_chat.report import Place, Value
from slipstream_chat.values import first, listed, mapping
from slipstream_imports.records import ModelCall, Told
from slipstream_imports.rows import LogRow
from slipstream_imports.traces import Traces, gathered, replies_of, sent_of, usage_of

GATHERS_ROWS = True
REDACTED_TEXT = "redacted-by-litellm"
FRAME_FIELDS = ("standard_logging_object", "standard_logging_payload", "kwargs")
LABEL_FIELDS = (
    ("user", ("end_user", "user", "user_id")),
    ("team", ("team_alias", "team_id", "user_api_key_team_alias")),
)


def is_one(row: Mapping[str, Value]) -> bool:
    if "call_type" in row and any(n in row for n in ("response", "messages", "request_id", "startTime")):
        return True
    return any(
        "call_type" in mapping(row.get(frame)) or (frame.startswith("standard") and frame in row)
        for frame in FRAME_FIELDS
    )


@gathered("litellm")
def runs(found: Traces, row: LogRow, place: Place) -> None:
    told = row.value
    for frame in (*FRAME_FIELDS, *FRAME_FIELDS[:1]):
        told = mapping(told.get(frame)) or told
    _take(found, told, place, row)


def _take(found: Traces, row: Mapping[str, Value], place: Place, at: LogRow) -> None:
    about = mapping(row.get("metadata"))
    asked = mapping(row.get("proxy_server_request"))
    asked = mapping(asked.get("body")) or asked
    own = first(row, "id", "request_id", "litellm_call_id")
    ident = first(row, "session_id", "trace_id") or first(about, "session_id", "trace_id") or own
    trace = found.named(ident, at)
    if task := first(about, "task", "trace_name", "generation_name"):
        trace.task = trace.task or str(task)
    for tag, names in LABEL_FIELDS:
        if value := first(row, *names) or first(about, *names):
            trace.tags[tag] = str(value)
    for label in listed(row.get("request_tags")):
        trace.tags[str(label)] = "yes"
    if row.get("status") not in (None, "success", ""):
        place.drop("a model call", "it failed")
        return
    sent = row.get("messages")
    sent = sent if sent not in (None, "", [], {}, "{}", "[]") else (asked or row.get("input"))
    messages, tools = sent_of(sent, place)
    if any(m.get("content") == REDACTED_TEXT for m in messages):
        place.drop("a model call", "its messages were redacted (turn_off_message_logging)")
        return
    settings = mapping(first(row, "model_parameters", "optional_params"))
    tools = tools or [tool_of(t) for t in listed(settings.get("tools") or asked.get("tools"))] or None
    begin, end = place.time(row.get("startTime"), "startTime"), place.time(row.get("endTime"), "endTime")
    response = row.get("response")
    counts = usage_of(row, mapping(response).get("usage"))
    model = first(row, "model_group", "model")
    told = Told.between(begin, end, counts, model)
    replies = replies_of(response, messages, place) if response not in ({}, "{}", "", None) else []
    trace.call(str(own or ""), None, ModelCall(messages, replies, told, tools))
