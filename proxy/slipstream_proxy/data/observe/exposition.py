"""What the data plane's metrics are called, and how their snapshots become Prometheus's text.

Not compiled: it runs once a scrape.
"""

from __future__ import annotations

from slipstream_proxy.json_types import JsonObject

SECONDS_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
MAX_LABEL_CHARS = 64
"""Characters of a tag's value that is a label."""

METRIC_FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "slipstream_calls_total": (
        "counter",
        "Calls of captured formats, by format, outcome (ok, error, aborted), status class and adapter.",
        ("format", "outcome", "status", "adapter"),
    ),
    "slipstream_tagged_calls_total": (
        "counter",
        "The same by the values of tags that proxy.metric_tags names (x-slipstream-tag-NAME) and adapter.",
        ("tag", "value", "status", "adapter"),
    ),
    "slipstream_passed_requests_total": (
        "counter",
        "Requests of other routes that were passed through to the engine.",
        ("route", "status"),
    ),
    "slipstream_capture_lost_total": ("counter", "Calls that were served but could not be written to the spool.", ()),
    "slipstream_uncaptured_calls_total": (
        "counter",
        "Calls that were relayed and not recorded, by the header that asked for it (capture, split), or judge.",
        ("by",),
    ),
    "slipstream_split_session_names_total": (
        "counter",
        "Names of sessions under which several conversations began, so that each is an episode, by the field.",
        ("field",),
    ),
    "slipstream_explored_calls_total": (
        "counter",
        "Calls that were sampled otherwise than asked, so that they can be trained on (explore).",
        (),
    ),
    "slipstream_requests_refused_total": ("counter", "Requests refused by the proxy itself, by status.", ("status",)),
    "slipstream_unknown_tenants_total": (
        "counter",
        "Requests whose tag proxy.tenant_tag named no tenant: they belong to none.",
        (),
    ),
    "slipstream_quota_unchecked_calls_total": (
        "counter",
        "Calls of a tenant that were let through while the database could not say what is left of its quota.",
        (),
    ),
    "slipstream_upstream_retries_total": ("counter", "Calls sent again to another connection or engine.", ()),
    "slipstream_pins_total": (
        "counter",
        "Episodes pinned, by who decided: control, worker (the control plane was away), rule (one adapter only).",
        ("by",),
    ),
    "slipstream_pin_moves_total": (
        "counter",
        "Running episodes that went on with another adapter at their next call, because no engine had theirs.",
        (),
    ),
    "slipstream_in_flight": ("gauge", "Calls being answered.", ()),
    "slipstream_queued": ("gauge", "Calls in flight of which the engine has sent nothing yet.", ()),
    "slipstream_connections": ("gauge", "Client connections.", ()),
    "slipstream_connections_limit": (
        "gauge",
        "Client connections that the limit of open files leaves room for.",
        (),
    ),
    "slipstream_connections_closed_total": (
        "counter",
        "Connections without a call that were closed for new ones: silent (nothing was sent yet), idle.",
        ("why",),
    ),
    "slipstream_accepts_delayed_total": (
        "counter",
        "Looks for room for a new connection at which every connection had a call.",
        (),
    ),
    "slipstream_event_loop_lag_seconds": (
        "gauge",
        "How late the worker's one-second timer was, last time; the worst worker's.",
        (),
    ),
    "slipstream_held_calls_total": (
        "counter",
        "Calls that waited because the trainer had the engine's GPU (engine.share).",
        (),
    ),
    "slipstream_hold_wait_seconds_total": ("counter", "Time that those calls waited.", ()),
    "slipstream_hold_longest_seconds": ("gauge", "The longest of those waits since the start.", ()),
    "slipstream_call_seconds": ("histogram", "Time from a call's arrival to its reply's end.", ("format",)),
    "slipstream_first_byte_seconds": (
        "histogram",
        "Time from a call's arrival to the engine's first byte.",
        ("format",),
    ),
    "slipstream_chunk_seconds": (
        "histogram",
        "Mean time between the pieces of a streamed reply, an observation a stream.",
        ("format",),
    ),
    "slipstream_upstream_seconds": ("histogram", "Time from a call's forwarding to the engine's last byte.", ()),
    "slipstream_overhead_seconds": (
        "histogram",
        "Time of a call that was not the engine's: identity, pin, durability.",
        (),
    ),
    "gen_ai_server_request_duration_seconds": (
        "histogram",
        "slipstream_call_seconds under OpenTelemetry's name.",
        ("gen_ai_operation_name",),
    ),
    "gen_ai_server_time_to_first_token_seconds": (
        "histogram",
        "slipstream_first_byte_seconds under OpenTelemetry's name.",
        ("gen_ai_operation_name",),
    ),
    "gen_ai_server_time_per_output_token_seconds": (
        "histogram",
        "slipstream_chunk_seconds under OpenTelemetry's name: an engine streams a token a piece.",
        ("gen_ai_operation_name",),
    ),
}
"""Name → (type, text, labels)."""

GEN_AI = {
    "slipstream_call_seconds": "gen_ai_server_request_duration_seconds",
    "slipstream_first_byte_seconds": "gen_ai_server_time_to_first_token_seconds",
    "slipstream_chunk_seconds": "gen_ai_server_time_per_output_token_seconds",
}
LARGEST_WINS_GAUGES = frozenset(("slipstream_event_loop_lag_seconds", "slipstream_hold_longest_seconds"))
"""Gauges of which the largest counts, not the sum."""

Key = tuple[str, str]


def operation(form: str) -> str:
    """OpenTelemetry's ``gen_ai.operation.name`` of a wire format."""
    return "text_completion" if form == "completions" else "chat"


def passed_label(path: str, status: int) -> str:
    """The first two parts of an allowed route's path, because the rest may be an id."""
    first, _, second = path.strip("/").partition("/")
    second = second.partition("/")[0]
    second = next((name for name in ("files", "batches") if second.startswith(name)), second)
    return f'route="/{first}{"/" + second if second else ""}",status="{status // 100}xx"'


def render(parts: list[JsonObject]) -> str:
    """``parts``, of workers: ``{"values": [[name, labels, value]], "histograms": [[name, labels, counts, total]]}``."""
    values: dict[Key, float] = {}
    histograms: dict[Key, tuple[list[int], float]] = {}
    for part in parts:
        for name, labels, value in part["values"]:
            before = values.get((name, labels), 0.0)
            values[name, labels] = max(before, value) if name in LARGEST_WINS_GAUGES else before + value
        for name, labels, counts, total in part["histograms"]:
            _sum(histograms, (name, labels), counts, total)
            if name in GEN_AI:
                form = labels.removeprefix('format="').removesuffix('"')
                _sum(histograms, (GEN_AI[name], f'gen_ai_operation_name="{operation(form)}"'), counts, total)
    lines: list[str] = []
    for name, (kind, text, labelled) in METRIC_FAMILIES.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        if kind == "histogram":
            of_name = sorted((labels, h) for (n, labels), h in histograms.items() if n == name)
            for labels, (counts, total) in of_name or (
                [] if labelled else [("", ([0] * (len(SECONDS_BUCKETS) + 1), 0.0))]
            ):
                lines += _histogram(name, labels, counts, total)
            continue
        found = sorted((labels, v) for (n, labels), v in values.items() if n == name)
        found = found or ([] if labelled else [("", 0.0)])
        lines += [f"{name}{{{labels}}} {_number(v)}" if labels else f"{name} {_number(v)}" for labels, v in found]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _sum(into: dict[Key, tuple[list[int], float]], key: Key, counts: list[int], total: float) -> None:
    before = into.get(key)
    if before is not None:
        counts, total = [a + b for a, b in zip(before[0], counts, strict=True)], before[1] + total
    into[key] = (counts, total)


def _histogram(name: str, labels: str, counts: list[int], total: float) -> list[str]:
    lines, seen, more = [], 0, f"{labels}," if labels else ""
    for bound, count in zip((*map(str, SECONDS_BUCKETS), "+Inf"), counts, strict=True):
        seen += count
        lines.append(f'{name}_bucket{{{more}le="{bound}"}} {seen}')
    own = f"{{{labels}}}" if labels else ""
    return [*lines, f"{name}_sum{own} {total:.6f}", f"{name}_count{own} {seen}"]
