"""What does not come as it should: unusual but right, and wrong on purpose."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import socket

import aiohttp
import pytest
from tests.support import until
from tests.support.dataplane import ASK, post, read_request, send

from slipstream_proxy.data.call.call import ActiveCall
from slipstream_proxy.data.server import connection
from slipstream_proxy.data.wire.codings import ACCEPTED_CODINGS
from slipstream_proxy.keys import Keys

BODY = json.dumps(ASK).encode()
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        LINE + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % len(BODY),
        LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        LINE + b"Content-Length: 5\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        LINE + b"Content-Length: %d\r\n folded: yes\r\n\r\n" % len(BODY) + BODY,
        LINE + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
        LINE + b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY,
        LINE + b"Content-Length: %d\r\nX-A: b\0c\r\n\r\n" % len(BODY) + BODY,
        LINE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        LINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        LINE + b"X-A: b\x1b[31m\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        b"POST /v1/chat/completions HTTP/1.1\r\nno colon here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 rubbish\r\n\r\n",
    ],
    ids=lambda r: r[100:150].decode("latin-1").strip(),
)
async def test_smuggling_gets_400_and_a_closed_connection(start, fake, request_):
    proxy = await start()
    got = await send(proxy.port, request_)
    assert got.startswith(b"HTTP/1.1 400")
    assert got.count(b"HTTP/1.") == 1 and b'"error"' in got
    assert not fake.seen


async def test_chunked_gzip_and_expect_bodies(start, fake):
    proxy = await start()
    expected = (await post(proxy.url, ASK))[2]
    chunked = (
        LINE + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    )
    assert (await send(proxy.port, chunked)).endswith(expected)
    packed = gzip.compress(BODY)
    zipped = LINE + b"Content-Encoding: gzip\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(packed) + packed
    assert (await send(proxy.port, zipped)).endswith(expected)
    expect = LINE + b"Expect: 100-continue\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(BODY)
    got = await send(proxy.port, expect, BODY)
    assert got.startswith(b"HTTP/1.1 100") and got.endswith(expected)
    assert [json.loads(r)["messages"] for r in fake.raw] == [ASK["messages"]] * 4


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_a_body_that_cannot_be_unpacked_is_a_400_and_no_error_of_ours(start, fake, caplog, path):
    proxy = await start()
    line = LINE.replace(b"/v1/chat/completions", path.encode())
    got = await send(proxy.port, line + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
    assert got.startswith(b"HTTP/1.1 400") and b"malformed" in got and not fake.seen
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


async def test_http_1_0(start, fake):
    proxy = await start()
    assert b" 400 Bad Request\r\n" in await send(proxy.port, b"POST /v1/chat/completions\r\n\r\n") and not fake.raw
    old = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    assert (await send(proxy.port, old % len(BODY) + BODY)).startswith(b"HTTP/1.0 200")
    stream = json.dumps({**ASK, "stream": True}).encode()
    got = await send(proxy.port, old % len(stream) + stream)
    assert b"transfer-encoding" not in got.lower() and got.endswith(b"data: [DONE]\n\n")


async def test_http_1_0_with_keep_alive(start, fake):
    """A whole reply says how long it is and the connection goes on; a stream ends with its connection."""
    proxy = await start()
    old = b"POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%b"
    stream = json.dumps({**ASK, "stream": True}).encode()
    got = await send(proxy.port, old % (len(BODY), BODY) + old % (len(stream), stream))
    assert got.count(b"HTTP/1.0 200") == 2 and got.endswith(b"data: [DONE]\n\n")


async def test_both_ways_answer_with_the_engines_headers_and_ours(start, serve):
    async def bare(reader, writer):
        while True:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nx-Request-Id: a\r\ncontent-length: 2\r\nx-request-id: b\r\n\r\n{}")

    proxy = await start(engine={"urls": [await serve(bare)]})
    many = b"".join(b"x-%d: v\r\n" % i for i in range(300))
    for way in (b"", b"TE: trailers\r\nConnection: close, te\r\n"):
        request = LINE + many + way + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        head = (await send(proxy.port, request, until=b"{}")).partition(b"\r\n\r\n")[0]
        names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
        ours = {b"x-slipstream-" + name for name in (b"episode", b"call", b"adapter", b"trainable")}
        guards = {b"x-content-type-options", b"content-security-policy"}
        assert names - {b"connection"} == {b"x-request-id", b"content-length"} | ours | guards


async def test_a_head_in_single_bytes(start, fake):
    proxy = await start()
    request = LINE + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    got = await send(proxy.port, *(request[i : i + 1] for i in range(len(request))))
    assert got.startswith(b"HTTP/1.1 200")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    for byte in LINE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY:
        writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_too_large(start, fake):
    proxy = await start(proxy={"body_limit": 2000, "header_limit": 2048})
    got = await send(proxy.port, LINE + b"Content-Length: 3000\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 413") and b"connection: close" in got.lower()
    got = await send(
        proxy.port, LINE + b"Transfer-Encoding: chunked\r\n\r\n" + b"bb8\r\n" + b"x" * 3000 + b"\r\n0\r\n\r\n"
    )
    assert got.startswith(b"HTTP/1.1 413")
    bomb = gzip.compress(b"x" * 100_000)
    got = await send(proxy.port, LINE + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)
    assert got.startswith(b"HTTP/1.1 413")
    got = await send(proxy.port, LINE + b"X-A: " + b"y" * 4000)
    assert got.startswith(b"HTTP/1.1 431")
    got = await send(proxy.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"y" * 4000 + b"\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 431", b"HTTP/1.0 431", b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert not fake.seen


@pytest.mark.parametrize(
    "line", [b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n", LINE + b"Connection: close\r\n", LINE]
)
async def test_the_sum_of_a_heads_lines_is_limited_too(start, fake, line):
    proxy = await start(proxy={"header_limit": 4096})
    for count, size in ((50, 100), (1100, 1)):
        head = line + b"".join(b"X-%d: %b\r\n" % (i, b"y" * size) for i in range(count)) + b"\r\n"
        whole = await send(proxy.port, head)
        drip = await send(proxy.port, *(head[i : i + 61] for i in range(0, len(head), 61)))
        for got in (whole, drip):
            assert got.startswith((b"HTTP/1.1 431", b"HTTP/1.0 431")) and got.count(b"HTTP/1.") == 1, got[:100]
    many = line + b"".join(b"X%d:\r\n" % i for i in range(200)) + b"Content-Length: 0\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(many)
    async with asyncio.timeout(30):
        assert b"431" not in await reader.readline()
    writer.close()


async def test_a_client_that_sends_a_head_without_end_reads_why_it_is_turned_away(start, fake):
    proxy = await start(proxy={"header_limit": 4096})
    for line in (LINE, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(line + b"X-A: " + b"y" * 3_000_000)
        async with asyncio.timeout(30):
            assert (await reader.readline()).endswith(b" 431 Request Header Fields Too Large\r\n")
        writer.close()


async def test_a_connection_that_never_asks_is_closed(start, fake, monkeypatch):
    monkeypatch.setattr(connection, "KEEPALIVE_TIMEOUT", 0.2)
    proxy = await start()
    assert await send(proxy.port) == b""


async def test_a_client_that_connects_long_before_it_asks_is_answered(start, fake):
    """Its machine slept, or its event loop was busy: the head's time begins with the head."""
    proxy = await start(proxy={"header_timeout": 0.2})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await asyncio.sleep(2.5)  # two looks
    body = json.dumps(ASK).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    writer.write(head[:30])
    await asyncio.sleep(0.01)
    writer.write(head[30:] + body)
    async with asyncio.timeout(30):
        assert (await reader.readline()).endswith(b" 200 OK\r\n")
    writer.close()


async def test_a_client_reads_why_its_body_is_too_large(start, fake):
    proxy = await start(proxy={"body_limit": 2000})
    status, _, body = await post(proxy.url, {**ASK, "x": "y" * 8_000_000}, path="/v1/messages")
    assert status == 413 and json.loads(body)["error"]["type"] == "request_too_large"


@pytest.mark.parametrize(
    "part",
    [
        b"POST /v1/ch",
        LINE + b"Content-Length: 100\r\n\r\nabc",
        b"GET / HT",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
async def test_slow_requests_are_ended(start, fake, part):
    proxy = await start(proxy={"header_timeout": 0.2})
    got = await send(proxy.port, part)
    assert got.startswith(b"HTTP/1.1 408") and not fake.seen


async def test_keys_scopes_and_limits(start, fake, tmp_path):
    _, secret = Keys(tmp_path / "data" / "keys.json").add("a", ["inference"], rate=1000, concurrency=1)
    _, judge = Keys(tmp_path / "data" / "keys.json").add("j", ["judge"])
    proxy = await start()
    assert (await post(proxy.url, ASK))[0] == 401
    assert (await post(proxy.url, ASK, headers={"authorization": "Bearer nope"}))[0] == 401
    assert (await post(proxy.url, ASK, headers={"authorization": f"Bearer {judge}"}))[0] == 403
    status, headers, _ = await post(proxy.url, ASK, headers={"x-api-key": f"{secret}:e9"})
    assert status == 200 and headers["x-slipstream-episode"] == "e9"
    fake.hold = asyncio.Event()
    running = asyncio.create_task(post(proxy.url, ASK, headers={"authorization": f"Bearer {secret}"}))
    await until(lambda: len(fake.seen) == 2)
    status, headers, _ = await post(proxy.url, ASK, headers={"authorization": f"Bearer {secret}"})
    assert status == 429 and headers["retry-after"] == "1"
    fake.hold.set()
    assert (await running)[0] == 200
    frames = await proxy.record(2)
    assert {f.head["key"] for f in frames} == {proxy.plane.admission.keys.list()[0].id}
    assert secret.encode() not in b"".join(p.read_bytes() for p in proxy.config.spool_dir.iterdir())
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/models", "/slipstream/v1/status"):
            async with session.get(proxy.url + path) as reply:
                assert reply.status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 503),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:8100"}, 503),
        ({"Host": "proxy.lan:8100"}, 503),
        ({"Host": "[bad"}, 403),
        ({"Host": "PROXY.lan"}, 503),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "evil.example@localhost"}, 403),
        ({"Host": "localhost/evil.example"}, 403),
        ({"Host": "[::1]:8100"}, 503),
        ({"Host": ""}, 403),
        ({"Origin": "file://"}, 403),
        ({"Origin": "http://[bad"}, 403),
        ({"Origin": "http://proxy.LAN"}, 503),
    ],
)
async def test_host_and_origin_of_the_control_api(start, fake, headers, status):
    proxy = await start(proxy={"allowed_hosts": ["Proxy.lan"]})
    async with (
        aiohttp.ClientSession() as session,
        session.get(proxy.url + "/slipstream/v1/status", headers=headers) as reply,
    ):
        assert reply.status == status and "error" in await reply.json()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("origin", "status"), [("http://evil.example", 403), ("null", 403), ("http://localhost:3", 200)]
)
async def test_no_other_sites_page_makes_calls_without_keys(start, fake, path, origin, status):
    """By DNS rebinding it could: what it sends would be trained on."""
    proxy = await start()
    ask = {**ASK, "input": "x", "max_tokens": 3}
    got, _, body = await post(proxy.url, ask, path=path, headers={"origin": origin})
    assert got == status and (status == 200 or "Origin" in json.loads(body)["error"]["message"])
    assert len(fake.raw) + len(fake.seen) == 0 or status == 200
    Keys(proxy.config.keys_file).add("k", ["inference"])
    assert (await post((await start()).url, ask, path=path, headers={"origin": origin}))[
        0
    ] == 401  # a key says who it is


@pytest.mark.parametrize(
    ("target", "lines", "status"),
    [
        (b"/", b"Host: evil.example\r\n", b"403"),
        (b"/static/page.js", b"Host: evil.example\r\n", b"403"),
        (b"/", b"", b"400"),
        (b"/", b"Host: localhost\r\nHost: evil.example\r\n", b"400"),
        (b"http://evil.example/", b"Host: localhost\r\n", b"403"),
        (b"http://localhost/", b"Host: evil.example\r\n", b"403"),
        (b"/", b"Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n", b"403"),
        (b"/", b"Host: localhost\r\n", b"503"),
    ],
)
async def test_host_and_origin_of_the_page(start, fake, target, lines, status):
    proxy = await start()
    got = await send(proxy.port, b"GET " + target + b" HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n")
    assert got.split(b" ", 2)[1] == status


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/e/x/v1/chat/completions"])
@pytest.mark.parametrize("way", [{}, {"Connection": "close"}])
async def test_without_keys_no_other_sites_page_may_call(start, fake, path, way):
    """A browser sends Origin with every POST to another site; what is no browser sends none."""
    proxy = await start(proxy={"allowed_hosts": ["app.example"]})
    for origin in ("http://evil.example", "https://localhost.evil.example", "null", "http://[bad"):
        status, _, body = await post(proxy.url, ASK, path=path, headers={"Origin": origin, **way})
        assert status == 403 and json.loads(body)["error"]["type"] == "permission_error"
    assert not fake.seen
    for origin in ("http://localhost:3000", "http://127.0.0.1", "http://[::1]:1", "https://app.example"):
        assert (await post(proxy.url, ASK, path=path, headers={"Origin": origin, **way}))[0] == 200
    assert (await post(proxy.url, ASK, path=path, headers={"Host": "host.docker.internal:8100", **way}))[0] == 200


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/e/x/v1/chat/completions", "/v1/models"]
)
@pytest.mark.parametrize("way", [{}, {"Connection": "close"}])
async def test_without_keys_no_name_of_a_strangers_may_be_called(start, fake, tmp_path, path, way):
    """DNS rebinding: the page's own name leads to this machine, and then the browser sends no foreign Origin."""
    proxy = await start(proxy={"allowed_hosts": ["App.example"]})

    async def ask(host: str, port: int = proxy.port, **headers: str) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{port}{path}"
        method, body = ("GET", None) if path == "/v1/models" else ("POST", BODY)
        sent = {"content-type": "application/json", "Host": host, **way, **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=body, headers=sent) as reply,
        ):
            return reply.status, await reply.read()

    for host in ("evil.example", "evil.example:8100", "10.0.0.1", "", "localhost.evil.example", "[bad"):
        status, body = await ask(host)
        assert status == 403 and b"proxy.allowed_hosts" in body and json.loads(body)["error"]["type"]
        assert (await ask(host, Origin=f"http://{host}"))[0] == 403
    assert not fake.seen
    for host in ("localhost", "127.0.0.1:1", "[::1]:8100", "app.EXAMPLE:80", "host.docker.internal:8100"):
        assert (await ask(host))[0] == 200
    Keys(proxy.config.keys_file).add("k", ["inference"])
    assert (await ask("evil.example", (await start()).port))[0] == 401


async def test_a_request_without_host_is_no_browsers(start, fake):
    proxy = await start()
    line = LINE.replace(b"Host: localhost\r\n", b"").replace(b"HTTP/1.1", b"HTTP/1.0")
    got = await send(proxy.port, line + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert got.split(b" ", 2)[1] == b"200"
    got = await send(proxy.port, line + b"Host: evil.example\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert got.split(b" ", 2)[1] == b"403"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
async def test_of_two_keys_the_first_counts(start, fake, tmp_path, path, more):
    _, secret = Keys(tmp_path / "data" / "keys.json").add("a", ["inference"])
    proxy = await start()
    lines = LINE.replace(b"/v1/chat/completions", path.encode()) + more + b"Content-Length: %d\r\n" % len(BODY)
    for keys, status in (((secret, "nope"), b"200"), (("nope", secret), b"401")):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(lines + b"".join(b"Authorization: Bearer %b\r\n" % k.encode() for k in keys) + b"\r\n" + BODY)
        async with asyncio.timeout(30):
            assert (await reader.readline()).split()[1] == status
        writer.close()


async def test_with_keys_any_page_may_call(start, fake, tmp_path):
    _, secret = Keys(tmp_path / "data" / "keys.json").add("a", ["inference"])
    proxy = await start()
    headers = {"Origin": "https://app.example", "Authorization": f"Bearer {secret}"}
    assert (await post(proxy.url, ASK, headers=headers))[0] == 200


async def test_a_client_that_sends_ahead_without_reading(start, fake):
    """Its socket is not read while a call runs, so that it cannot fill the proxy's memory."""
    proxy = await start()
    fake.hold = asyncio.Event()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(LINE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    await until(lambda: fake.seen)
    more = LINE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    writer.write(more * 4000)
    for _ in range(20):
        await asyncio.sleep(0.01)
    (connection,) = proxy.plane.state.connections
    assert len(connection._ahead) < 1_000_000
    fake.hold.set()
    fake.hold = None
    for _ in range(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()


async def test_a_client_that_sends_ahead_and_goes_is_heard(start, fake):
    proxy = await start()
    fake.hold = asyncio.Event()
    body = json.dumps({**ASK, "stream": True}).encode()
    client = socket.create_connection(("127.0.0.1", proxy.port))
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, LINE + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    await until(lambda: fake.seen)
    await loop.sock_sendall(client, (LINE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY) * 2000)
    (connection,) = proxy.plane.state.connections
    await until(lambda: connection._throttled)
    client.close()
    await until(lambda: fake.aborted == 1 and not proxy.plane.services.in_flight)


async def test_a_reader_that_stops_holds_the_engine_back(start, fake):
    """Backpressure: what a client does not read stays in the engine's socket and not in ours."""
    from aiohttp import web

    sent = 0

    async def flood(request):
        nonlocal sent
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(4000):
            await response.write(b"data: " + b"x" * 10_000 + b"\n\n")
            sent += 10_000
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", flood)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        proxy = await start(
            engine={"urls": [f"http://127.0.0.1:{runner.addresses[0][1]}"]}, proxy={"durability": "none"}
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1024)
        body = json.dumps({**ASK, "stream": True}).encode()
        writer.write(LINE + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 35_000_000
        got = 0
        async with asyncio.timeout(60):
            while got < 40_000_000:
                got += len(await reader.read(1 << 20))
        writer.close()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\nContent-Length: 2\r\n\r\n{}",
        b"GET /v1/models HTTP/1.1\nHost: localhost\n\n",
    ],
)
async def test_bare_line_feeds_get_their_400_at_once(start, fake, request_):
    proxy = await start()
    async with asyncio.timeout(10):
        got = await send(proxy.port, request_)
    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.") == 1 and not fake.seen


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_that_is_over_is_forgotten_at_once(start, fake, chunked, stream, fails):
    """Without the collector of cycles, which a worker hardly ever runs: a call holds its request and its reply."""

    async def body():
        yield json.dumps({**ASK, "stream": stream}).encode()

    def calls():
        return [
            o for o in gc.get_objects() if type(o) is ActiveCall
        ]  # isinstance asks each object, and one of torch warns

    proxy = await start()
    fake.fail_with = 500 if fails else None
    gc.collect()
    gc.disable()
    try:
        before = len(calls())
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                data = body() if chunked else json.dumps({**ASK, "stream": stream}).encode()
                headers = {"content-type": "application/json"}
                async with session.post(proxy.url + "/v1/chat/completions", data=data, headers=headers) as reply:
                    assert reply.status == (500 if fails else 200) and await reply.read()
        await until(lambda: len(calls()) <= before, 5)
    finally:
        gc.enable()


@pytest.mark.parametrize("coding", ["zstd", "br", "snappy", "gzip, zstd", "x-own"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/slipstream/v1/events"])
@pytest.mark.parametrize("later", [False, True])
async def test_a_coding_that_nothing_here_reads_is_a_415_that_names_those_that_are(start, fake, coding, path, later):
    """``later``: on a connection that another parser has taken over."""
    if coding in ACCEPTED_CODINGS:
        pytest.skip("it is read here")
    proxy = await start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), auto_decompress=False) as session:
        if later:
            async with session.get(f"{proxy.url}/healthz") as reply:
                assert reply.status == 200
        async with session.post(proxy.url + path, data=b"(packed)", headers={"content-encoding": coding}) as reply:
            said = (await reply.json())["error"]["message"]
            assert reply.status == 415 and "gzip" in said and "deflate" in said
    assert not fake.seen


async def test_a_packed_body_is_read(start, fake):
    proxy = await start()
    for packed in (gzip.compress(BODY), BODY):
        coding = "gzip" if packed is not BODY else "identity"
        headers = {"content-encoding": coding, "content-type": "application/json"}
        assert (await post(proxy.url, packed, headers=headers))[0] == 200
    assert len(fake.seen) == 2


def zstd(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("zstandard").compress(data)
    return packed


async def in_pieces(data: bytes, size: int):
    for at in range(0, len(data), size):
        yield data[at : at + size]


ZSTD_HEADERS = {"content-encoding": "zstd", "content-type": "application/json"}


@pytest.mark.parametrize("size", [1, 50, None])
async def test_a_body_packed_with_zstd_is_read_whole_and_streamed(start, fake, size):
    """Also one of several frames."""
    proxy = await start()
    packed = zstd(BODY[:40]) + zstd(BODY[40:])
    async with aiohttp.ClientSession() as session:
        data = packed if size is None else in_pieces(packed, size)
        async with session.post(proxy.url + "/v1/chat/completions", data=data, headers=ZSTD_HEADERS) as reply:
            assert reply.status == 200, await reply.text()
    assert [asked["messages"] for asked, _ in fake.seen] == [ASK["messages"]]


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
async def test_what_a_body_unpacks_to_has_the_same_limit_in_each_coding(start, fake, coding):
    proxy = await start(proxy={"body_limit": 2**20})
    pack = zstd if coding == "zstd" else gzip.compress
    for length, expected in ((2**20 - len(BODY), 200), (2**20, 413)):
        packed = pack(BODY + b" " * length)
        assert len(packed) < 2**14
        headers = {"content-encoding": coding, "content-type": "application/json"}
        status, _, body = await post(proxy.url, packed, headers=headers)
        assert status == expected, body
    assert len(fake.seen) == 1


@pytest.mark.parametrize("end", [1, 6, 20, -20])
async def test_a_frame_that_was_cut_or_is_none_is_refused(start, fake, end):
    proxy = await start()
    for packed in (zstd(BODY * 3)[:end], BODY):
        status, _, body = await post(proxy.url, packed, headers=ZSTD_HEADERS)
        assert status == 400 and json.loads(body)["error"]["message"], body
    assert not fake.seen
