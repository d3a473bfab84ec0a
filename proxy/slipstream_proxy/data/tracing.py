"""OpenTelemetry traces of calls: a span each, with the GenAI semantic conventions' attributes, a child of the agent's and the parent of the engine's.

On where ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` says where to (or ``OTEL_TRACES_EXPORTER=console``), off otherwise
and with ``OTEL_SDK_DISABLED=true``. Off, a client's ``traceparent`` still reaches the engine as it came. Spans hold names and numbers, no text of a message.

Source of the names: OpenTelemetry's "Semantic conventions for generative AI client operations".
"""

from __future__ import annotations

import logging
import os
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slipstream_proxy.data.metrics_text import operation
from slipstream_proxy.usage import usage_of

if TYPE_CHECKING:
    from slipstream_proxy.data.callstate import CallState

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
NANO = 1_000_000_000
REQUEST = {
    "temperature": "gen_ai.request.temperature", "top_p": "gen_ai.request.top_p", "top_k": "gen_ai.request.top_k", "seed": "gen_ai.request.seed",
    "max_tokens": "gen_ai.request.max_tokens", "max_completion_tokens": "gen_ai.request.max_tokens", "max_output_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty", "presence_penalty": "gen_ai.request.presence_penalty", "n": "gen_ai.request.choice.count",
}  # fmt: skip
"""Numbers of a request → their attribute."""

_FINISH = re.compile(rb'"(?:finish_reason|stop_reason)":\s*"(\w+)"')
_ID = re.compile(rb'"id":\s*"([\w-]{1,128})"')


def wanted(env: dict[str, str] | os._Environ[str] = os.environ) -> bool:
    """Whether the environment asks for traces."""
    exporters = env.get("OTEL_TRACES_EXPORTER", "otlp").lower()
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporters == "none":
        return False
    return exporters == "console" or any(env.get(name) for name in ENDPOINTS)


def make_tracing() -> Tracing | None:
    """None: the environment does not ask for traces, or the packages are not installed (which is said)."""
    if not wanted():
        return None
    try:
        return Tracing()
    except ImportError as e:
        log.warning("OTEL_… asks for traces, but %s is not installed: pip install 'slipstream[otel]'", e.name)
    except Exception as e:
        log.warning("no traces: %s: %s", type(e).__name__, e)
    return None


def _exporter() -> Any:
    if os.environ.get("OTEL_TRACES_EXPORTER", "").lower() == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class Tracing:
    def __init__(self) -> None:
        """Raises ``ImportError`` without OpenTelemetry's SDK. Sampling, headers, batching and the resource are the SDK's own ``OTEL_…`` settings."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {"service.name": "slipstream-proxy"})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter()))
        self._tracer = self._provider.get_tracer("slipstream", metadata.version("slipstream"))
        self._propagator = TraceContextTextMapPropagator()
        self._kind, self._failed = SpanKind.CLIENT, Status(StatusCode.ERROR)
        self._in_context = set_span_in_context

    def close(self) -> None:
        """Blocks until what is queued has been sent, or the exporter has given up."""
        self._provider.shutdown()

    def _start(self, call: CallState) -> Any:
        headers = call.request.headers
        carrier = {
            n: headers[n.encode()].decode("latin-1") for n in ("traceparent", "tracestate") if n.encode() in headers
        }
        name = f"{operation(call.dialect.name)} {call.client or call.plane.routes.default}"
        parent = self._propagator.extract(carrier)
        call.span = self._tracer.start_span(name, parent, self._kind, start_time=int(call.started * NANO))
        return call.span

    def headers(self, call: CallState) -> bytes:
        """``traceparent`` (and ``tracestate``) lines for the engine, with their line ends: our span is its parent."""
        span = call.span or self._start(call)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._in_context(span))
        return "".join(f"{name}: {value}\r\n" for name, value in carrier.items()).encode("latin-1", "replace")

    def block(self, call: CallState, block: bytes) -> bytes:
        """``block``, the request's lines for the engine, with our trace context in place of the client's."""
        lines = block.splitlines(keepends=True)
        kept = [line for line in lines if not line.lower().startswith((b"traceparent:", b"tracestate:"))]
        try:
            return b"".join(kept) + self.headers(call)
        except Exception:  # a trace must not cost a call
            log.exception("a span could not be begun")
            return block

    def end(self, call: CallState, status: int, outcome: str) -> None:
        """Never raises: a trace must not cost a call."""
        try:
            self._end(call, status, outcome)
        except Exception:
            log.exception("a span could not be ended")

    def _end(self, call: CallState, status: int, outcome: str) -> None:
        span = call.span or self._start(call)
        if span.is_recording():
            span.set_attributes(attributes(call, status, outcome))
            if outcome == "error":
                span.set_status(self._failed)
        span.end()


def attributes(call: CallState, status: int, outcome: str) -> dict[str, Any]:
    """Of a finished call. Names, numbers and ids; no text."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation(call.dialect.name), "gen_ai.provider.name": "vllm" if call.route.kind != "upstream" else "openai",
        "gen_ai.request.model": call.client or call.plane.routes.default, "gen_ai.response.model": call.adapter, "http.response.status_code": status,
        "slipstream.call.id": call.id, "slipstream.outcome": outcome, "slipstream.format": call.dialect.name, "slipstream.tries": call.tries,
    }  # fmt: skip
    if call.episode is not None:
        found["gen_ai.conversation.id"] = found["slipstream.episode"] = call.episode.id
        if call.episode.task:
            found["slipstream.task"] = call.episode.task
    if call.pin is not None:
        found["slipstream.arm"] = call.pin.arm
    if call.upstream:
        parts = urlsplit(call.upstream)
        found["server.address"] = parts.hostname or parts.path
        if parts.port:
            found["server.port"] = parts.port
    if outcome != "ok":
        found["error.type"] = "aborted" if outcome == "aborted" else str(status)
    if call.first is not None:
        found["slipstream.first_byte_seconds"] = call.first - call.started
    for name, attribute in REQUEST.items():
        value = call.text.get(name) if call.text is not None else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[attribute] = value
    return found | _of_reply(b"".join(call.parts))


def _of_reply(reply: bytes) -> dict[str, Any]:
    """Token counts, finish reasons and the id, read from a whole reply or a stream's events without parsing them."""
    names = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    found: dict[str, Any] = {name: n for name, n in zip(names, usage_of(reply), strict=True) if n is not None}
    if reasons := [r.decode() for r in _FINISH.findall(reply)]:
        found["gen_ai.response.finish_reasons"] = reasons
    if m := _ID.search(reply):
        found["gen_ai.response.id"] = m[1].decode()
    return found
