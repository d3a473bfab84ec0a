"""What an engine's answer may do to whoever reads it: nothing but be read. It sends nobody elsewhere, and the browser of
the page, which has the same address, gets no orders from it.
"""

from __future__ import annotations

import json

import aiohttp
import pytest
from tests.support.dataplane import ASK

PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/models", "/v1/files/f")
ORDERS = {
    "Set-Cookie": "a=b",
    "Clear-Site-Data": '"*"',
    "Strict-Transport-Security": "max-age=1",
    "Refresh": "0; url=http://elsewhere.test/",
    "Location": "http://elsewhere.test/",
    "Content-Security-Policy": "default-src *",
    "Link": "<http://elsewhere.test/>; rel=preload",
    "Service-Worker-Allowed": "/",
    "X-Accel-Redirect": "/etc/hosts",
    "X-Sendfile": "/etc/hosts",
    "Alt-Svc": 'h2="elsewhere.test:443"',
    "SourceMap": "http://elsewhere.test/",
    "X-Own": "1",
}
KEPT = {"X-Request-Id": "r1", "X-RateLimit-Remaining-Requests": "7", "Cache-Control": "no-store"}


async def ask(proxy, path: str, **more) -> tuple[int, dict, bytes]:
    async with aiohttp.ClientSession() as session:
        named = path.startswith(("/v1/models", "/v1/files")) or path in ("/", "/healthz", "/readyz", "/metrics")
        method, body = ("GET", None) if named else ("POST", {**ASK, "max_tokens": 5, "input": "x"})
        async with session.request(method, proxy.url + path, json=body, allow_redirects=False, **more) as reply:
            return reply.status, {n.lower(): v for n, v in reply.headers.items()}, await reply.read()


async def read(reader) -> bytes:
    """One request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    return head + await reader.readexactly(int(length or 0))


def server(head: str, body: bytes = b"<script>1</script>"):
    async def speak(reader, writer):
        await read(reader)
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return speak


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308, 399])
@pytest.mark.parametrize("path", PATHS)
async def test_no_redirect_of_an_engine_reaches_a_client(start, serve, path, status):
    met = []

    async def elsewhere(reader, writer):
        met.append(await read(reader))

    away = await serve(elsewhere)
    body = b"" if status == 304 else b"x"
    proxy = await start(engine={"urls": [await serve(server(f"{status} Away\r\nLocation: {away}/", body))]})
    found, headers, text = await ask(proxy, path)
    said = json.loads(text)
    assert (found, "location" in headers, met) == (502, False, [])
    assert "redirects" in said["error"]["message"] and (said.get("type") == "error") is (path == "/v1/messages")


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("path", PATHS)
async def test_an_engine_gives_browsers_no_orders(start, serve, path, status):
    fields = "\r\n".join(f"{n}: {v}" for n, v in {**ORDERS, **KEPT}.items())
    body = b'{"data": [], "choices": []}' if path in PATHS[1:5] else b"<script>1</script>"
    proxy = await start(
        engine={"urls": [await serve(server(f"{status} Ok\r\nContent-Type: text/html\r\n{fields}", body))]}
    )
    found, headers, _ = await ask(proxy, path)
    assert found == status or path == "/v1/messages"
    assert headers["x-content-type-options"] == "nosniff" and headers["content-security-policy"] == "sandbox"
    assert not {n.lower() for n in ORDERS} - {"content-security-policy"} & headers.keys()
    if path != "/v1/messages":  # its reply is translated, and cannot be here
        assert {n: headers.get(n.lower()) for n in KEPT} == KEPT


async def test_streams_and_what_the_proxy_says_itself_run_nothing_either(start, fake):
    proxy = await start()
    replies = [await ask(proxy, path) for path in ("/healthz", "/readyz", "/metrics", "/nope", "/v1/models")]
    async with aiohttp.ClientSession() as session:
        for asked in (json.dumps({**ASK, "stream": True}), "{", json.dumps({**ASK, "model": "nobody"})):
            async with session.post(proxy.url + "/v1/chat/completions", data=asked) as reply:
                replies.append((reply.status, {n.lower(): v for n, v in reply.headers.items()}, await reply.read()))
        async with session.get(proxy.url + "/slipstream/v1/status") as reply:  # no control plane here
            replies.append((reply.status, {n.lower(): v for n, v in reply.headers.items()}, await reply.read()))
    for status, headers, body in replies:
        assert headers.get("x-content-type-options") == "nosniff", (status, body)
        assert headers.get("content-security-policy") == "sandbox", (status, body)
