"""OpenTelemetry traces of calls: a span each, with the GenAI semantic conventions' attributes, a child of the agent's
and the parent of the engine's. Where the agent has no trace, an episode's calls are one: its id follows from theirs.

On where ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` says where to (or
``OTEL_TRACES_EXPORTER=console``), off otherwise and with ``OTEL_SDK_DISABLED=true``. Off, a client's ``traceparent``
still reaches the engine as it came. Spans hold names and numbers, no text of a message.

Sources of the names: OpenTelemetry's "Semantic conventions for generative AI client operations"; OpenInference's
semantic conventions, which Phoenix shows and Langfuse reads too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from slipstream.engines import DEFAULT_ENGINE
from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.observe.exposition import operation
from slipstream_proxy.usage import usage_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from slipstream_proxy.data.call.parts import AskedCall, Call
    from slipstream_proxy.data.call.payload import Payload
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.redaction import Redaction

log = logging.getLogger(__name__)

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
NANOSECONDS_PER_S = 1_000_000_000
REQUEST_ATTRIBUTES = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
}
"""Numbers of a request → their attribute."""

_TOKENS = (
    ("gen_ai.usage.input_tokens", "llm.token_count.prompt"),
    ("gen_ai.usage.output_tokens", "llm.token_count.completion"),
)
_FINISH = re.compile(rb'"(?:finish_reason|stop_reason)":\s*"(\w+)"')
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")
_ID = re.compile(rb'"id":\s*"([\w-]{1,128})"')


def wanted(env: dict[str, str] | os._Environ[str] = os.environ) -> bool:
    """Whether the environment asks for traces."""
    exporters = env.get("OTEL_TRACES_EXPORTER", "otlp").lower()
    if env.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporters == "none":
        return False
    return exporters == "console" or any(env.get(name) for name in ENDPOINT_VARIABLES)


def make_tracing(
    model: str, public_url: str | None = None, live: LiveView | None = None, redaction: Redaction | None = None
) -> Tracing | None:
    """None: the environment does not ask for traces, or the packages are not installed, which is logged."""
    if not wanted():
        return None
    try:
        return Tracing(model, public_url, live, redaction)
    except ImportError as e:
        log.warning("OTEL_… asks for traces, but %s is not installed: pip install 'slipstream[otel]'", e.name)
    except Exception as e:
        log.warning("no traces: %s: %s", type(e).__name__, e)
    return None


def _exporter() -> SpanExporter:
    if os.environ.get("OTEL_TRACES_EXPORTER", "").lower() == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class Tracing(CallStep):
    """A span for each call."""

    def __init__(
        self,
        model: str,
        public_url: str | None = None,
        live: LiveView | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        """``model`` names a span whose call names none. ``public_url``: where people open the page. ``live`` knows of
        which kind the engines are. ``redaction``: what of a client's words a span may hold. Raises ``ImportError``
        without OpenTelemetry's SDK. Sampling, headers, batching and the resource are the SDK's own ``OTEL_…`` settings.
        """
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.model, self._url, self._live, self._redaction = model, public_url, live, redaction
        named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {"service.name": "slipstream-proxy"})
        self._ids = RandomIdGenerator()
        self._random_trace = self._ids.generate_trace_id
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter()))
        self._tracer = self._provider.get_tracer("slipstream", metadata.version("slipstream"))
        self._propagator = TraceContextTextMapPropagator()
        self._kind, self._failed = SpanKind.CLIENT, Status(StatusCode.ERROR)
        self._in_context = set_span_in_context
        self._spans: dict[str, Span] = {}
        """By call, from its forwarding to its end."""

    def close(self) -> None:
        """Blocks until what is queued has been sent, or the exporter has given up."""
        self._provider.shutdown()

    def _span(self, call: AskedCall) -> Span:
        found = self._spans.get(call.id)
        if found is None:
            headers = call.request.headers
            carrier = {
                n: headers[n.encode()].decode("latin-1") for n in ("traceparent", "tracestate") if n.encode() in headers
            }
            asked = call.model if self._redaction is None else self._redaction.text("model", call.model)
            name = f"{operation(call.dialect.name)} {asked or self.model}"
            parent = self._propagator.extract(carrier)
            trace = trace_of(call)
            # asked at once, and only for a span without a parent
            made = self._random_trace if trace is None else lambda: trace
            self._ids.generate_trace_id = made  # type: ignore[method-assign]
            found = self._tracer.start_span(name, parent, self._kind, start_time=int(call.started * NANOSECONDS_PER_S))
            self._spans[call.id] = found
        return found

    def forward(self, call: Call, fields: bytes) -> bytes:
        """Our trace context in place of the client's: our span is the parent of the engine's."""
        lines = fields.splitlines(keepends=True)
        kept = [line for line in lines if not line.lower().startswith((b"traceparent:", b"tracestate:"))]
        try:
            carrier: dict[str, str] = {}
            span = self._span(call.asked)
            span.set_attributes(asked_attributes(call.route.payload))
            self._propagator.inject(carrier, self._in_context(span))
        except Exception:  # a trace must not cost a call
            log.exception("a span could not be begun")
            return fields
        ours = "".join(f"{name}: {value}\r\n" for name, value in carrier.items())
        return b"".join(kept) + ours.encode("latin-1", "replace")

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        try:
            span = self._span(call.asked)
            if span.is_recording():
                kind = DEFAULT_ENGINE.kind if self._live is None else self._live.kind
                span.set_attributes(attributes(call, status, outcome, self.model, self._url, kind))
                if outcome == "error":
                    span.set_status(self._failed)
            span.end()
        except Exception:
            log.exception("a span could not be ended")
        finally:
            self._spans.pop(call.asked.id, None)


def trace_of(call: AskedCall) -> int | None:
    """The trace of an episode's calls, in any worker; None: a call without one."""
    if call.episode is None:
        return None
    key, _ = call.episode.name
    return int.from_bytes(hashlib.blake2b(f"{key}\0{call.episode.id}".encode(), digest_size=16).digest()) or 1


def page_of(call: AskedCall, public_url: str | None) -> str | None:
    """The call on the page; None: nobody knows the page's address."""
    base = public_url
    if base is None:
        host = call.request.headers.get(b"host", b"").decode("latin-1")
        base = f"http://{host}" if _HOST.fullmatch(host) else None
    if base is None or call.episode is None:
        return None
    where = urlencode({"key": call.key.id if call.key is not None else "-", "call": call.id})
    return f"{base.rstrip('/')}/#/episode/{quote(call.episode.id, safe='')}?{where}"


def attributes(
    call: CallResult,
    status: int,
    outcome: str,
    model: str,
    public_url: str | None = None,
    kind: str = DEFAULT_ENGINE.kind,
) -> dict[str, AttributeValue]:
    """The span's attributes for a finished call: names, numbers and ids, and no message text."""
    asked, route, reply = call.asked, call.route, call.reply
    episode = asked.episode
    found: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation(asked.dialect.name),
        "gen_ai.provider.name": kind if asked.target.kind != "upstream" else "openai",
        "gen_ai.request.model": call.model or model,
        "gen_ai.response.model": call.adapter,
        "http.response.status_code": status,
        "slipstream.call.id": asked.id,
        "slipstream.outcome": outcome,
        "slipstream.format": asked.dialect.name,
        "slipstream.tries": route.tries,
        "openinference.span.kind": "LLM",
        "llm.model_name": call.model or model,
    }
    if episode is not None:
        found["gen_ai.conversation.id"] = found["slipstream.episode"] = found["session.id"] = episode.id
        if asked.split != "off" and (url := page_of(asked, public_url)):
            found["slipstream.url"] = url
        if episode.task:
            found["slipstream.task"] = found["langfuse.trace.name"] = episode.task
    if route.pin is not None:
        found["slipstream.arm"] = route.pin.arm
    if route.upstream:
        parts = urlsplit(route.upstream)
        found["server.address"] = parts.hostname or parts.path
        if parts.port:
            found["server.port"] = parts.port
    if outcome != "ok":
        found["error.type"] = "aborted" if outcome == "aborted" else str(status)
    if reply.first is not None:
        found["slipstream.first_byte_seconds"] = reply.first - asked.started
    return found | asked_attributes(route.payload) | _of_reply(reply.body())


def asked_attributes(payload: Payload | None) -> dict[str, AttributeValue]:
    """How a request asks to be sampled."""
    found: dict[str, AttributeValue] = {}
    for name, attribute in REQUEST_ATTRIBUTES.items():
        value = payload.get(name) if payload is not None else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[attribute] = value
    return found


def _of_reply(reply: bytes) -> dict[str, AttributeValue]:
    """Token counts, finish reasons and the id, read from a whole reply or a stream's events without parsing them."""
    found: dict[str, AttributeValue] = {}
    for names, count in zip(_TOKENS, usage_of(reply), strict=True):
        if count is not None:
            found |= dict.fromkeys(names, count)
    if reasons := [r.decode() for r in _FINISH.findall(reply)]:
        found["gen_ai.response.finish_reasons"] = reasons
    if m := _ID.search(reply):
        found["gen_ai.response.id"] = m[1].decode()
    return found
