"""Traces, as a collector gets them."""

from __future__ import annotations

import json
import sys

import aiohttp
import pytest
from tests.support import until
from tests.support.fake_engine import FakeEngine

from slipstream_proxy.data.call.observers.tracing import make_tracing, wanted

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from tests.support.collector import Collector  # noqa: E402

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
SECRET = "a word that nobody else may read"


@pytest.fixture
def collector(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-of-a-test=1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.close()


async def ask(url: str, path: str = "/v1/chat/completions", headers=None, **more) -> tuple[int, dict[str, str], bytes]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": SECRET}],
        "temperature": 0.5,
        "max_tokens": 9,
        **more,
    }
    async with aiohttp.ClientSession() as session:
        async with session.post(url + path, json=body, headers=headers or {}) as reply:
            return reply.status, dict(reply.headers), await reply.read()


def sent(fake: FakeEngine) -> dict[str, str]:
    return {k.lower(): v for k, v in fake.seen[-1][1].items()}


async def test_a_call_is_a_span_between_the_agents_and_the_engines(start, fake, collector):
    proxy = await start()
    headers = {**CONTEXT, "x-slipstream-episode": "e1", "x-slipstream-task": "t1"}
    status, told, _ = await ask(proxy.url, headers=headers, seed=7)
    assert status == 200
    await until(lambda: collector.spans)
    ((span, about, resource),) = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert sent(fake)["traceparent"] == f"00-{TRACE}-{span.span_id.hex()}-01", "the engine's parent is our span"
    assert sent(fake)["tracestate"] == "vendor=1"
    assert (span.name, span.kind) == ("chat tiny", 3)
    assert span.end_time_unix_nano > span.start_time_unix_nano > 0
    engine = fake.url.rpartition(":")
    assert about | {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "tiny", "gen_ai.response.model": "tiny",
        "gen_ai.request.temperature": 0.5, "gen_ai.request.max_tokens": 9, "gen_ai.request.seed": 7, "gen_ai.usage.input_tokens": 4, "gen_ai.usage.output_tokens": 8,
        "gen_ai.response.finish_reasons": ["stop"], "gen_ai.response.id": "chatcmpl-1", "gen_ai.conversation.id": "e1", "slipstream.task": "t1",
        "slipstream.call.id": told["x-slipstream-call"], "http.response.status_code": 200, "server.address": "127.0.0.1", "server.port": int(engine[2]),
        "slipstream.outcome": "ok",
    } == about  # fmt: skip
    where = f"?key=-&call={told['x-slipstream-call']}"
    assert about["slipstream.url"] == f"{proxy.url}/#/episode/e1{where}", "a span leads to its call on the page"
    assert "error.type" not in about
    assert resource["service.name"] == "slipstream-proxy"
    assert collector.headers[0]["x-of-a-test"] == "1", "the exporter's own settings count"
    assert SECRET.encode() not in b"".join(collector.raw)


async def test_streams_errors_and_refusals_are_spans_too(start, fake, collector):
    proxy = await start(engine={"cpu": True})
    await ask(proxy.url, stream=True)
    await ask(proxy.url, path="/v1/completions", prompt=SECRET)
    await ask(proxy.url, prompt_logprobs=1)
    fake.fail_with = 400
    await ask(proxy.url)
    await until(lambda: len(collector.spans) >= 4)
    streamed, completed, refused, failed = (s[1] for s in collector.spans)
    assert (streamed["gen_ai.usage.input_tokens"], streamed["gen_ai.usage.output_tokens"]) == (4, 8)
    assert (completed["gen_ai.operation.name"], completed["slipstream.format"]) == ("text_completion", "completions")
    assert (refused["http.response.status_code"], refused["error.type"], refused["slipstream.tries"]) == (400, "400", 0)
    assert (failed["error.type"], failed["slipstream.outcome"]) == ("400", "error")
    assert [s[0].status.code for s in collector.spans] == [0, 0, 2, 2]
    assert len({s[0].trace_id for s in collector.spans}) == 4, "a run without a context begins a trace"
    fake.fail_with = None
    other = await start()  # another worker
    for url in (proxy.url, other.url, proxy.url):
        await ask(url, headers={"x-slipstream-episode": "run"})
    await until(lambda: len(collector.spans) >= 7)
    run = [s for s in collector.spans if s[1].get("session.id") == "run"]
    assert len(run) == 3 and len({s[0].trace_id for s in run}) == 1, "a run is one trace"
    assert len({s[0].span_id for s in run}) == 3 and not any(s[0].parent_span_id for s in run)
    assert (run[0][1]["openinference.span.kind"], run[0][1]["llm.token_count.completion"]) == ("LLM", 8)
    assert SECRET.encode() not in b"".join(collector.raw)


async def test_a_trace_that_is_not_sampled_goes_on_unsampled(start, fake, collector):
    proxy = await start()
    await ask(proxy.url, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert sent(fake)["traceparent"].startswith(f"00-{TRACE}-") and sent(fake)["traceparent"].endswith("-00")
    await ask(proxy.url, headers={"traceparent": "rubbish"})
    await until(lambda: collector.spans)
    assert len(collector.spans) == 1 and collector.spans[0][0].trace_id.hex() != TRACE


async def test_off_the_agents_context_reaches_the_engine_as_it_came(start, fake, monkeypatch, collector):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    proxy = await start()
    assert proxy.plane.tracing is None
    await ask(proxy.url, headers=CONTEXT)
    assert {k: sent(fake)[k] for k in CONTEXT} == CONTEXT
    assert collector.spans == []


async def test_a_collector_that_is_away_costs_no_call(start, fake, monkeypatch, collector):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    proxy = await start()
    for _ in range(3):
        assert (await ask(proxy.url))[0] == 200


async def test_the_calls_id_is_the_requests_id(start, fake):
    proxy = await start()
    _, told, _ = await ask(proxy.url)
    assert sent(fake)["x-request-id"] == told["x-slipstream-call"]
    await ask(proxy.url, headers={"x-request-id": "the agent's own"})
    assert sent(fake)["x-request-id"] == "the agent's own"


@pytest.mark.parametrize(
    "env, on",
    [
        ({}, False), ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True), ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, False), ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False), ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)  # fmt: skip
def test_when_it_is_on(env, on):
    assert wanted(env) is on


def test_without_the_packages_it_is_said(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert make_tracing("tiny") is None
    assert "slipstream[otel]" in caplog.text


def test_the_console_exporter_needs_no_collector(monkeypatch, capsys):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    tracing = make_tracing("tiny")
    assert tracing is not None
    tracing._tracer.start_span("chat x").end()
    tracing.close()
    assert json.loads(capsys.readouterr().err)["name"] == "chat x"


async def test_the_links_address_can_be_set_and_no_other_host_is_made_up(start, fake, collector):
    proxy = await start(proxy={"public_url": "https://learn.example/slip/"})
    await ask(proxy.url, headers={"x-slipstream-episode": "a.b~1"})
    await until(lambda: collector.spans)
    assert collector.spans[0][1]["slipstream.url"].startswith("https://learn.example/slip/#/episode/a.b")
