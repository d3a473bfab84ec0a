"""Routes that are relayed without being captured, and those that there are not."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from tests.support.dataplane import ASK, post, read_request

CHAT = "/v1/chat/completions"


async def ask(proxy, method, path, **kw):
    """Paths as they are: nothing is normalised."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    head = "".join(f"{name}: {value}\r\n" for name, value in kw.pop("headers", {}).items())
    body = kw.pop("body", b"")
    writer.write(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    got = await reader.read()
    writer.close()
    head, _, text = got.partition(b"\r\n\r\n")  # type: ignore[assignment]
    lines = head.decode("latin-1").split("\r\n")  # type: ignore[attr-defined]
    return int(lines[0].split()[1]), {n.lower(): v for n, _, v in (x.partition(": ") for x in lines[1:])}, text


async def test_what_a_route_does_not_have_is_said_as_the_engine_says_it(start, fake):
    proxy = await start()
    for method, path, allow in (
        ("GET", CHAT, "POST"),
        ("PUT", "/v1/messages", "POST"),
        ("DELETE", "/v1/models", "GET"),
    ):
        status, headers, body = await ask(proxy, method, path)
        assert (status, headers["allow"], body) == (405, allow, b'{"detail":"Method Not Allowed"}')
    assert (await ask(proxy, "HEAD", "/v1/models"))[::2] == (405, b"")
    assert (await ask(proxy, "GET", "/nope"))[::2] == (404, b'{"detail":"Not Found"}')
    for path, shape in (
        ("/e/run/chat/completions", "error"),
        ("/v1/v1/messages", "type"),
        ("/v1beta/models/m", "error"),
    ):
        status, _, body = await ask(proxy, "POST", path)
        said = json.loads(body)
        assert status == 404 and next(iter(said)) == shape and "base URL" in said["error"]["message"]
    status, headers, _ = await ask(proxy, "POST", f"/e/e1{CHAT}/?a=b")
    assert (status, headers["location"]) == (307, f"/e/e1{CHAT}?a=b")
    async with aiohttp.ClientSession() as session, session.post(f"{proxy.url}{CHAT}/", json=ASK) as reply:
        assert reply.status == 200
    status, _, body = await ask(proxy, "POST", "/e/run%2D1/v1/chat%2Fcompletion%73", body=json.dumps(ASK).encode())
    assert status == 200 and json.loads(body)["object"] == "chat.completion"
    heads = [frame.head for frame in await proxy.record(2)]
    assert "run-1" in {head["episode"] for head in heads}


async def other_engine(routes):
    """``routes``: (method, path, handler)."""
    app = web.Application()
    app.add_routes([web.route(*route) for route in routes])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_browsers_ask_the_engine_whether_they_may(start):
    async def preflight(request):
        return web.Response(headers={"access-control-allow-origin": request.headers["origin"]})

    runner, url = await other_engine([("OPTIONS", CHAT, preflight)])
    proxy = await start(engine={"urls": [url]})
    try:
        asked = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}
        status, headers, _ = await ask(proxy, "OPTIONS", CHAT, headers=asked)
        assert status == 200 and headers["access-control-allow-origin"] == "http://localhost:3000"
        assert (await ask(proxy, "OPTIONS", CHAT))[0] == 405
        assert (await ask(proxy, "OPTIONS", "/v1/load_lora_adapter", headers=asked))[0] == 404
    finally:
        await runner.cleanup()


async def test_what_one_of_several_engines_keeps_is_found(start):
    async def mine(request):
        return web.json_response({"id": request.match_info["id"]})

    runners = [await other_engine([]), await other_engine([("*", "/v1/responses/{id}", mine)])]
    try:
        for urls in ([url for _, url in runners], [url for _, url in reversed(runners)]):
            proxy = await start(engine={"urls": urls})
            for method in ("GET", "DELETE"):
                assert (await ask(proxy, method, "/v1/responses/resp_1?x=1"))[::2] == (200, b'{"id": "resp_1"}')
            assert (await ask(proxy, "GET", "/v1/batches/b1"))[0] == 404
    finally:
        for runner, _ in runners:
            await runner.cleanup()


async def test_another_engine_answers_for_one_that_is_away(start, fake, serve):
    async def away(reader, writer):
        await reader.readline()

    gone = await serve(away)
    for urls in ([gone, fake.url], [fake.url, gone]):
        proxy = await start(engine={"urls": urls})
        for _ in range(2):
            assert (await post(proxy.url, {"model": "tiny", "input": "x"}, path="/v1/embeddings"))[0] == 200
            assert (await ask(proxy, "GET", "/v1/models"))[0] == 200
            proxy.plane.live.trouble.clear()
    proxy = await start(engine={"urls": [gone]})
    status, headers, _ = await post(proxy.url, {"model": "tiny", "input": "x"}, path="/v1/embeddings")
    assert status == 503 and headers["retry-after"] == "1"


async def test_an_engine_that_says_nothing_is_not_asked_twice(start, fake, serve):
    async def silent(reader, writer):
        await read_request(reader)
        await reader.read()

    proxy = await start(engine={"urls": [await serve(silent)]}, proxy={"upstream_timeout": 0.2})
    assert (await post(proxy.url, {"model": "tiny", "input": "x"}, path="/v1/embeddings"))[0] == 504


@pytest.mark.parametrize("path", ["/v1/models", "/v1/files/f1", "/v1/embeddings"])
async def test_a_chunk_whose_extension_has_no_end_is_given_up(start, serve, path):
    """The engine is never silent, and no byte of the body comes."""
    gone = asyncio.Event()

    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n1;a=")
        try:
            while True:
                writer.write(b"x" * 100)
                await writer.drain()
                await asyncio.sleep(0.01)
        except OSError:
            gone.set()

    proxy = await start(
        engine={"urls": [await serve(endless)]}, proxy={"upstream_timeout": 0.5}, models={"gpt-*": {"base": "tiny"}}
    )
    method, body = ("POST", {"model": "gpt-4o", "input": "x"}) if path == "/v1/embeddings" else ("GET", None)
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        async with session.request(method, proxy.url + path, json=body) as reply:
            if path == "/v1/files/f1":  # it goes on as it comes, so that only its end can say so
                assert reply.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    await reply.read()
            else:
                assert reply.status in (503, 504) and b"the model's server" in await reply.read()
        await gone.wait()


async def test_an_engine_whose_calls_hung_gets_one_relayed_post_at_a_time(start, fake):
    proxy = await start(engine={"urls": [fake.url]})
    live, embed = proxy.plane.live, {"model": "tiny", "input": "x"}
    live.changed = lambda: None
    live.mark_down(fake.url, hung=True)
    assert (await post(proxy.url, embed, path="/v1/embeddings"))[0] == 503 and not fake.seen
    live.found(fake.url)
    live.try_out(fake.url, "a call")
    status, headers, _ = await post(proxy.url, embed, path="/v1/embeddings")
    assert (status, headers["retry-after"]) == (503, "1") and not fake.seen
    live.release(fake.url, "a call")
    live.found(fake.url)
    for _ in range(2):
        assert (await post(proxy.url, embed, path="/v1/embeddings"))[0] == 200
    assert live.trouble[fake.url].kind == "trial" and not live.trying, "that says nothing of the model"
    assert (await post(proxy.url, ASK))[0] == 200 and not live.trouble


async def test_connections_that_engines_close_are_replaced(start, serve):
    """And a cookie of the engine's is no other client's."""
    heads = []

    async def one_each(reader, writer):
        heads.append(await read_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: who=first\r\ncontent-length: 2\r\n\r\n{}")
        heads.append(await read_request(reader))  # the second request on it is never answered

    proxy = await start(engine={"urls": [await serve(one_each)]})
    for _ in range(3):
        status, headers, _ = await post(proxy.url, {"model": "tiny", "input": "x"}, path="/v1/embeddings")
        assert status == 200 and "set-cookie" not in headers
    assert len(heads) == 5 and not any(b"cookie" in head.lower() for head in heads)


async def test_errors_of_passed_routes_name_the_clients_model(start):
    async def refuse(request):
        name = (await request.json())["model"]
        return web.json_response(
            {"error": {"message": f"The model `{name}` is no embedder"}, "model": name}, status=400
        )

    runner, url = await other_engine([("POST", "/v1/embeddings", refuse)])
    proxy = await start(engine={"urls": [url]}, models={"ada": {"base": "tiny"}})
    try:
        status, _, body = await post(proxy.url, {"model": "ada", "input": "x"}, path="/v1/embeddings")
        assert status == 400 and json.loads(body) == {
            "error": {"message": "The model `ada` is no embedder"},
            "model": "ada",
        }
    finally:
        await runner.cleanup()


async def test_the_model_of_a_form_is_mapped(start):
    got = []

    async def hear(request):
        form = await request.post()
        got.append((form["model"], form["file"].file.read(), form.get("prompt")))
        return web.Response(text="heard")

    runner, url = await other_engine([("POST", "/v1/audio/transcriptions", hear)])
    proxy = await start(
        engine={"urls": [url]}, models={"whisper-1": {"base": "tiny"}, "far": {"upstream": "http://x/v1"}}
    )
    sound = b'\x00\r\n--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nno\r\n'
    try:
        for name, status, sent in (("whisper-1", 200, "tiny"), ("other", 200, "other"), ("far", 404, None)):
            form = aiohttp.FormData()
            form.add_field("file", sound, filename="a.wav", content_type="audio/wav")
            form.add_field("model", name)
            form.add_field("prompt", 'name="model"')
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{proxy.url}/v1/audio/transcriptions", data=form) as reply,
            ):
                assert reply.status == status
            assert sent is None or got.pop() == (sent, sound, 'name="model"')
    finally:
        await runner.cleanup()


async def test_refusals_of_count_tokens_have_anthropics_shape(start, fake, tmp_path):
    proxy = await start(models={"far": {"upstream": "http://127.0.0.1:1/v1"}})
    status, _, body = await post(proxy.url, {"model": "far", "messages": []}, path="/v1/messages/count_tokens")
    assert status == 404 and json.loads(body)["type"] == "error"
