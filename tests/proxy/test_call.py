"""The relay against an engine that answers bare requests bare and injected ones with ids."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from tests.support import until
from tests.support.dataplane import ASK, parsed, post, redact_with

from slipstream_proxy.data.observe.metrics import WorkerCounts
from slipstream_proxy.data.wire.http1 import GUARD_HEADERS


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def event_loop_policy(request):
    import asyncio

    import uvloop

    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


VARIANTS = [
    {},
    {"n": 2},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": False},
    {"logprobs": None},
    {"return_token_ids": True},
    {"return_token_ids": True, "logprobs": True},
    {"return_token_ids": False},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "logprobs": True},
    {"stream": True, "return_token_ids": True},
    {"stream": True, "return_token_ids": True, "logprobs": True, "top_logprobs": 1},
    {"vendor": {"x": [1, 2.5, None]}},
]


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "aiohttp"])
@pytest.mark.parametrize("more", VARIANTS, ids=lambda v: ",".join(v) or "plain")
async def test_reply_is_the_engines_own(start, fake, more, slow):
    proxy = await start()
    body = {**ASK, **more}
    direct = await post(fake.url, body)
    through = await post(proxy.url, body, headers={"connection": "close"} if slow else None)
    assert through[0] == direct[0] == 200
    assert through[2] == direct[2]
    hop = ("transfer-encoding", "content-length", "connection", "date")
    ours = {
        k.lower(): v
        for k, v in through[1].items()
        if not k.lower().startswith("x-slipstream-") and k.lower() not in hop
    }
    guards = {name.lower(): value for name, value in GUARD_HEADERS.items()}
    assert ours == {k.lower(): v for k, v in direct[1].items() if k.lower() not in hop} | guards
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert through[1]["x-slipstream-call"] == head.id
    assert through[1]["x-slipstream-episode"] == head.episode
    assert head.outcome == "ok" and read.untrainable is None and read.error is None
    assert read.prompt_ids == [10, 11, 12, 13]
    assert [c.completion_ids for c in read.choices] == [list(range(8))] * (more.get("n") or 1)
    assert [c.logprobs for c in read.choices] == [[-0.25] * 8] * (more.get("n") or 1)
    assert read.messages == ASK["messages"]


async def test_our_headers_and_keys_stay_here(start, fake):
    proxy = await start()
    headers = {
        "authorization": "Bearer sk-secret",
        "x-api-key": "k",
        "cookie": "a=b",
        "x-slipstream-episode": "e1",
        "x-slipstream-tag-team": "blue",
        "x-custom": "kept",
    }
    await post(proxy.url, ASK, headers=headers)
    _, seen = fake.seen[-1]
    low = {k.lower(): v for k, v in seen.items()}
    assert low["x-custom"] == "kept"
    assert not {"authorization", "x-api-key", "cookie"} & set(low)
    assert not [k for k in low if k.startswith("x-slipstream")]
    (frame,) = await proxy.record()
    assert frame.head["episode"] == "e1" and frame.head["tags"] == {"team": "blue"} and frame.head["origin"] == "header"


async def test_error_of_the_engine_passes(start, fake):
    proxy = await start()
    direct = await post(fake.url, {**ASK, "model": "nope"})
    through = await post(proxy.url, {**ASK, "model": "nope"})
    assert (through[0], through[2]) == (direct[0], direct[2])
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert (
        head.outcome == "error"
        and head.status == 404
        and read.untrainable == "error"
        and "does not exist" in read.error
    )


async def test_model_map(start, fake):
    proxy = await start(models={"gpt-4*": {"trained": "tiny"}, "o1": {"base": "tiny"}})
    for more in ({}, {"stream": True}):
        direct = await post(fake.url, {**ASK, **more})
        status, headers, body = await post(proxy.url, {**ASK, "model": "gpt-4o", **more})
        assert status == 200 and headers["x-slipstream-adapter"] == "tiny"
        assert body == direct[2].replace(b'"model":"tiny"', b'"model":"gpt-4o"')
    async with aiohttp.ClientSession() as session, session.get(proxy.url + "/v1/models") as reply:
        assert [m["id"] for m in (await reply.json())["data"]] == ["tiny", "o1"]


async def test_error_speaks_the_clients_name(start, fake):
    proxy = await start(models={"gpt-4o": {"base": "gone"}})
    status, _, body = await post(proxy.url, {**ASK, "model": "gpt-4o"})
    assert status == 404 and b"gpt-4o" in body and b"gone" not in body


async def test_engine_dies_in_mid_stream(start, fake):
    proxy = await start()
    fake.die_after = 3
    async with aiohttp.ClientSession() as session:
        async with session.post(proxy.url + "/v1/chat/completions", json={**ASK, "stream": True}) as reply:
            got = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                async for data in reply.content.iter_any():
                    got += data
    assert b"[DONE]" not in got and b'data: {"error":' in got
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert head.outcome == "error" and read.untrainable == "error"


async def test_dead_engine_is_told_in_the_formats_shape(start, fake):
    proxy = await start()
    await fake.stop()
    status, headers, body = await post(proxy.url, ASK)
    assert status == 503 and headers["retry-after"] == "1" and json.loads(body)["error"]["code"] == 503
    status, _, body = await post(proxy.url, {**ASK, "max_tokens": 5}, path="/v1/messages")
    assert json.loads(body)["type"] == "error"
    assert [f.head["outcome"] for f in await proxy.record(1)] == ["error"]  # the second was not sent


@pytest.mark.parametrize("stream", [False, True])
async def test_client_abort_reaches_the_engine(start, fake, stream):
    proxy = await start()
    fake.hold = asyncio.Event()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    body = json.dumps({**ASK, "stream": stream}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    if stream:
        await reader.readuntil(b"\r\n\r\n")
    else:
        await until(lambda: fake.seen)
    writer.close()
    (frame,) = await proxy.record()
    assert frame.head["outcome"] == "aborted"
    if stream:
        await until(lambda: fake.aborted == 1)
    assert not proxy.plane.services.in_flight
    head, read = parsed(frame)
    assert read.untrainable == "aborted"


@pytest.mark.parametrize("stream", [False, True])
async def test_capture_off_is_one_call_and_split_off_the_run(start, fake, stream, tmp_path):
    """Nothing of such a call is stored, the client gets the engine's bytes, and a metric counts it."""
    proxy = await start()
    ask, named = {**ASK, "stream": stream}, {"x-slipstream-episode": "run"}
    bare = (await post(fake.url, ask))[2]
    status, headers, body = await post(proxy.url, ask, headers={**named, "x-slipstream-capture": "off"})
    assert (status, body) == (200, bare) and "x-slipstream-call" not in headers
    for value in ("", "on"):
        assert "x-slipstream-call" in (await post(proxy.url, ask, headers={**named, "x-slipstream-capture": value}))[1]
    for more in ({"x-slipstream-split": "off"}, {}):
        assert "x-slipstream-call" not in (await post(proxy.url, ask, headers={**named, **more}))[1]
    assert [frame.head["episode"] for frame in await proxy.record(2)] == ["run", "run"]
    await post(proxy.url, ask, headers={"x-slipstream-capture": "off", "x-slipstream-kind": "judge"})
    proxy.plane.metrics.save(tmp_path / "data7.json")
    assert WorkerCounts(tmp_path).uncaptured == {"capture": 1, "split": 2, "judge": 1}


async def test_completions(start, fake):
    proxy = await start()
    body, path = {"model": "tiny", "prompt": "a"}, "/v1/completions"
    direct, through = await post(fake.url, body, path), await post(proxy.url, body, path)
    assert (through[0], through[2]) == (direct[0], direct[2])
    (frame,) = await proxy.record()
    _, read = parsed(frame)
    assert (
        read.prompt_ids == [1, 2]
        and read.choices[0].completion_ids == [7]
        and read.choices[0].logprobs == [-0.5]
        and read.untrainable is None
    )


async def test_other_routes(start, fake, monkeypatch):
    proxy = await start(models={"text-embedding-3": {"base": "tiny"}})
    status, _, body = await post(proxy.url, {"model": "text-embedding-3", "input": "a"}, path="/v1/embeddings")
    assert status == 200 and json.loads(body)["model"] == "text-embedding-3" and fake.seen[-1][0]["model"] == "tiny"
    for path in ("/v1/load_lora_adapter", "/sleep", "/v1/chat/completions/render", "/internal/pins"):
        assert (await post(proxy.url, {}, path=path))[0] == 404
    monkeypatch.setattr("slipstream_proxy.data.engines.control_link.RESTART_PATIENCE_S", 0.3)
    status, _, body = await post(proxy.url, {}, path="/slipstream/v1/groups/x/retry")
    assert status == 503 and "control plane" in json.loads(body)["error"]["message"]
    assert (await post(proxy.url, {}, path="/slipstream/v1/episodes/x/done"))[0] == 200, "the worker takes it"


async def test_unreadable_bodies_go_to_the_engine(start, fake):
    proxy = await start()
    for raw in (b"{", b"[1]", b"", b'{"model": 3}'):
        direct, through = await post(fake.url, raw), await post(proxy.url, raw)
        assert (through[0], through[2]) == (direct[0], direct[2])


async def test_lone_surrogates_and_long_integers(start, fake):
    proxy = await start()
    raw = b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}],"seed":123456789012345678901234567890,"x":NaN}'
    assert (await post(proxy.url, raw))[2] == (await post(fake.url, raw))[2]
    assert (
        fake.seen[0][0]["messages"] == fake.seen[1][0]["messages"]
        and fake.seen[0][0]["seed"] == fake.seen[1][0]["seed"]
    )


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "1" * 40, "18446744073709551615"])
async def test_integers_of_a_schema_stay_what_they_are(start, fake, number):
    proxy = await start()
    tool = '{"type":"function","function":{"name":"f","parameters":{"maximum":%s}}}' % number
    await post(proxy.url, f'{{"model":"tiny","messages":[],"tools":[{tool}]}}'.encode())
    assert tool.encode() in fake.raw[-1]


async def test_large_prompt(start, fake):
    proxy = await start()
    status, _, _ = await post(proxy.url, {**ASK, "messages": [{"role": "user", "content": "x" * 2_000_000}]})
    assert status == 200 and len(fake.seen[-1][0]["messages"][0]["content"]) == 2_000_000


async def test_failover_before_the_first_byte(start, fake):
    from tests.support.fake_engine import FakeEngine

    other = await FakeEngine().start()
    proxy = await start(engine={"urls": [fake.url, other.url]})
    await fake.stop()
    try:
        for i in range(6):
            status, _, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": f"e{i}"})
            assert status == 200
    finally:
        await other.stop()


async def test_external_upstream(start, fake, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-upstream")
    proxy = await start(models={"ext": {"upstream": fake.url + "/v1", "model": "tiny", "api_key_env": "SOME_KEY"}})
    status, _, body = await post(proxy.url, {**ASK, "model": "ext"})
    assert status == 200 and json.loads(body)["model"] == "ext"
    sent, headers = fake.seen[-1]
    assert "return_token_ids" not in sent and headers["Authorization"] == "Bearer sk-upstream"
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert head.external and read.untrainable == "external upstream" and read.choices[0].message["content"]


async def test_idempotency_key_replays(start, fake):
    proxy = await start()
    first = await post(proxy.url, ASK, headers={"idempotency-key": "k1"})
    again = await post(proxy.url, ASK, headers={"idempotency-key": "k1"})
    assert (
        first[2] == again[2] and len(fake.seen) == 1 and first[1]["x-slipstream-call"] == again[1]["x-slipstream-call"]
    )
    await post(proxy.url, {**ASK, "n": 1}, headers={"idempotency-key": "k1"})
    assert len(fake.seen) == 2
    first, again = [await post(proxy.url, {**ASK, "stream": True}, headers={"idempotency-key": "k2"}) for _ in range(2)]
    assert first[2] == again[2] and first[2].endswith(b"data: [DONE]\n\n") and len(fake.seen) == 3
    fake.fail_with = 500
    await post(proxy.url, ASK, headers={"idempotency-key": "k3"})
    fake.fail_with = None
    assert (await post(proxy.url, ASK, headers={"idempotency-key": "k3"}))[0] == 200  # a failure is never replayed


async def test_retries_are_told_apart(start, fake):
    proxy = await start()
    for count in ("0", "1"):
        await post(proxy.url, ASK, headers={"x-slipstream-episode": "e", "x-stainless-retry-count": count})
    first, second = await proxy.record(2)
    assert (first.head["attempt"], second.head["attempt"]) == (0, 1) and first.head["body_hash"] == second.head[
        "body_hash"
    ]


async def test_pipelined_requests(start, fake):
    proxy = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    body = json.dumps(ASK).encode()
    one = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    writer.write(one * 5 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    got = await reader.read()
    assert got.count(b"HTTP/1.1 200") == 6 and got.endswith(b'{"status": "ok"}')
    writer.close()


async def test_what_is_redacted_is_not_stored_and_not_taken_from_the_reply(start, fake):
    proxy = await start()
    redact_with(
        proxy.plane, lambda record: {k: v.replace("Hello", "X").replace("alice", "X") for k, v in record.items()}
    )
    headers = {"x-slipstream-tag-user": "alice", "x-slipstream-episode": "e"}
    _, _, body = await post(proxy.url, ASK, headers=headers)
    assert b"Hello" in body
    (frame,) = await proxy.record()
    assert frame.head["tags"] == {"user": "X"} and frame.head["note"] == "redacted" and b"Hello" not in frame.reply
    assert b"alice" not in b"".join(p.read_bytes() for p in proxy.config.spool_dir.iterdir())
