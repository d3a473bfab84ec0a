"""Messages and responses, asked as chat completions: what the client gets, what the engine is asked, what is recorded."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from tests.support import until
from tests.support.dataplane import ASK, parsed, post

MESSAGE = {**ASK, "max_tokens": 5}
RESPONSE = {"model": "tiny", "input": "hi ✓"}


def events(body):
    return [json.loads(e.split("data: ")[1]) for e in body.decode().split("\n\n") if e]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)])
async def test_recorded_with_its_tokens(start, fake, path, body, stream):
    proxy = await start(models={"any": {"trained": "tiny"}})
    status, headers, reply = await post(proxy.url, {**body, "model": "any", "stream": stream}, path=path)
    assert status == 200 and headers["x-slipstream-adapter"] == "tiny"
    assert fake.seen[-1][0]["messages"] == ASK["messages"] and fake.seen[-1][0]["return_token_ids"] is True
    if stream:
        got = events(reply)
        named = [e.get("message") or e.get("response") for e in got]
        assert {n["model"] for n in named if n} == {"any"}
        assert got[-1]["type"] == ("message_stop" if path == "/v1/messages" else "response.completed")
        said = "".join(e["delta"]["text"] if "messages" in path else e["delta"] for e in got if e["type"].endswith(("block_delta", "text.delta")))  # fmt: skip
    else:
        read = json.loads(reply)
        assert read["model"] == "any"
        said = (read["content"] if path == "/v1/messages" else read["output"][0]["content"])[0]["text"]
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert head.dialect == path.removeprefix("/v1/") and head.stream == stream
    assert read.untrainable is None and read.prompt_ids == [10, 11, 12, 13]
    assert read.choices[0].completion_ids == list(range(8)) and len(read.choices[0].logprobs) == 8
    assert read.messages == ASK["messages"]
    shown = read.choices[0].message["content"]
    assert said == shown


async def test_what_is_not_known_to_be_equal_goes_as_it_was_asked(start, fake):
    proxy = await start()
    body = {**MESSAGE, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}
    direct, through = await post(fake.url, body, "/v1/messages"), await post(proxy.url, body, "/v1/messages")
    assert (through[0], through[2]) == (direct[0], direct[2])
    assert fake.seen[-1][0] == body
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert (
        read.untrainable == "images or other blocks: image"
        and head.note == "images or other blocks: image"
        and read.choices[0].message["content"] == [{"type": "text", "text": "hi"}]
    )
    assert head.extra == {}


async def test_what_the_chat_route_refuses_is_asked_of_its_own(start, fake):
    """Its error is the one that the client gets, or its answer."""
    proxy = await start()
    direct = await post(fake.url, {**MESSAGE, "model": "nobody"}, "/v1/messages")
    through = await post(proxy.url, {**MESSAGE, "model": "nobody"}, "/v1/messages")
    assert (through[0], through[2]) == (direct[0], direct[2])
    assert [sorted(b)[0] for b, _ in fake.seen[-2:]] == ["logprobs", "max_tokens"]
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert (
        head.status == 404
        and read.untrainable == "error"
        and json.loads(frame.request) == {**MESSAGE, "model": "nobody"}
    )


async def test_overload_is_not_asked_twice(start, fake):
    proxy = await start()
    fake.fail_with = 503
    assert (await post(proxy.url, MESSAGE, "/v1/messages"))[0] == 503
    fake.fail_with = 429
    assert (await post(proxy.url, MESSAGE, "/v1/messages"))[0] == 429
    assert len(fake.seen) == 2


async def test_a_response_says_what_is_left_of_the_context(start, fake):
    proxy = await start()
    replies = await asyncio.gather(*(post(proxy.url, RESPONSE, "/v1/responses") for _ in range(3)))
    assert [json.loads(r[2])["max_output_tokens"] for r in replies] == [4092] * 3
    assert (
        json.loads((await post(proxy.url, {**RESPONSE, "max_output_tokens": 7}, "/v1/responses"))[2])[
            "max_output_tokens"
        ]
        == 7
    )


async def test_all_wait_while_the_engine_is_asked(start, fake):
    proxy = await start()
    asked, go = 0, asyncio.Event()

    async def slow(request):
        nonlocal asked
        asked += 1
        await go.wait()
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 100}]})

    server = web.Application()
    server.router.add_get("/v1/models", slow)
    runner = web.AppRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    contexts, told = proxy.plane.contexts, []
    for _ in range(3):
        assert contexts.of(url, lambda: told.append(contexts.of(url, lambda: None))) is None
        await until(lambda: asked == 1)
    go.set()
    await until(lambda: told == [100] * 3)
    assert asked == 1
    await runner.cleanup()


async def test_an_engine_that_does_not_say_its_context(start, fake):
    proxy = await start()
    fake.models = set()
    assert (await post(proxy.url, RESPONSE, "/v1/responses"))[0] == 404  # the fake engine has no such route
    (frame,) = await proxy.record()
    assert frame.head["note"] == "the length of the engine's context is not known"


@pytest.mark.parametrize("stream", [False, True])
async def test_untagged_conversations_go_on(start, fake, stream):
    proxy = await start()
    for path, body, field in (("/v1/messages", MESSAGE, "messages"), ("/v1/responses", RESPONSE, "input")):
        asked = {**body, "stream": stream, field: [{"role": "user", "content": f"who is {path}?"}]}
        _, headers, reply = await post(proxy.url, asked, path)
        if stream and path == "/v1/messages":
            said = [{"role": "assistant", "content": [{"type": "text", "text": "".join(e["delta"]["text"] for e in events(reply) if e["type"] == "content_block_delta")}]}]  # fmt: skip
        elif stream:
            said = events(reply)[-1]["response"]["output"]
        elif path == "/v1/messages":
            said = [{"role": "assistant", "content": json.loads(reply)["content"]}]
        else:
            said = json.loads(reply)["output"]
        more = {**asked, field: [*asked[field], *said, {"role": "user", "content": "and then?"}]}
        _, after, _ = await post(proxy.url, more, path)
        assert after["x-slipstream-episode"] == headers["x-slipstream-episode"]


async def test_replayed_by_its_idempotency_key(start, fake):
    proxy = await start()
    key = {"idempotency-key": "once"}
    first = await post(proxy.url, {**MESSAGE, "stream": True}, "/v1/messages", headers=key)
    again = await post(proxy.url, {**MESSAGE, "stream": True}, "/v1/messages", headers=key)
    assert first[2] == again[2] and len(fake.seen) == 1


async def test_an_engine_that_dies_in_a_stream(start, fake):
    proxy = await start()
    fake.die_after = 3
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    body = json.dumps({**MESSAGE, "stream": True}).encode()
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    writer.write(head % len(body) + body)
    async with asyncio.timeout(60):
        got = await reader.read()
    writer.close()
    assert b"event: error" in got and b"message_stop" not in got and b"chat.completion" not in got
    (frame,) = await proxy.record()
    assert parsed(frame)[1].untrainable == "error"


async def test_an_engine_that_keeps_responses(start, fake):
    proxy = await start(engine={"own_responses": True})
    assert (await post(proxy.url, RESPONSE, "/v1/responses"))[0] == 404  # the fake engine has no such route
    assert (await post(proxy.url, MESSAGE, "/v1/messages"))[0] == 200
    first, second = await proxy.record(2)
    assert (first.head["note"], second.head["note"]) == ("engine.own_responses", None)
