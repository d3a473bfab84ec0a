"""The HTTP around the bodies: chunked, compressed, pipelined, HTTP/1.0."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.comparing import ask, level, same
from tests.support.requests import CHAT

pytestmark = pytest.mark.engine

BODY = {**CHAT, "model": "inbox", "max_tokens": 4}
DATA = json.dumps(BODY).encode()


def talk(url: str, data: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=120) as s:
        s.sendall(data)
        got = b""
        while piece := s.recv(65536):
            got += piece
    return got


def request(
    *lines: bytes, data: bytes = DATA, version: bytes = b"HTTP/1.1", path: bytes = b"/v1/chat/completions"
) -> bytes:
    head = [b"POST %b %b" % (path, version), b"Host: localhost", b"Content-Type: application/json", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + data


def replies(got: bytes) -> list[Any]:
    """(status, body) of each reply."""
    found = []
    while got:
        head, _, got = got.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        size = int(length[0].partition(b":")[2]) if length else len(got)
        found.append((int(head.split()[1]), level(json.loads(got[:size]))))
        got = got[size:]
    return found


LENGTH = b"Content-Length: %d" % len(DATA)


def chunked(data: bytes) -> bytes:
    cut = len(data) // 3
    pieces = (data[:cut], data[cut:])
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        request(b"Connection: close", LENGTH),
        request(b"Connection: close", b"Transfer-Encoding: chunked", data=chunked(DATA)),
        request(LENGTH, version=b"HTTP/1.0"),
        request(LENGTH) + request(LENGTH) + request(b"Connection: close", LENGTH),
        request(LENGTH) + request(b"Connection: close", b"Transfer-Encoding: chunked", data=chunked(DATA)),
        request(b"Connection: close", b"Content-Length: 1", data=b"{"),
        request(b"Connection: close", b"Content-Length: 0", data=b""),
    ],
    ids=["plain", "chunked", "HTTP/1.0", "pipelined", "pipelined, chunked", "bad JSON", "no body"],
)
def test_bare_requests(engine, proxy, data):
    for last in (False, False, True):
        direct, through = replies(talk(engine.url, data)), replies(talk(proxy.url, data))
        if direct == through:
            break
        assert not last, (direct, through)
    assert len(direct) == data.count(b"POST /v1")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_compressed_bodies(engine, proxy, path):
    """Which vLLM does not read: the proxy unpacks them."""
    zipped = gzip.compress(json.dumps(BODY).encode())
    headers = (b"Connection: close", b"Content-Encoding: gzip", b"Content-Length: %d" % len(zipped))
    for _ in range(3):
        (found,) = replies(talk(proxy.url, request(*headers, data=zipped, path=path.encode())))
        expected = ask(engine.url, path, BODY)
        if found == (expected.status_code, level(expected.json())):
            return
    assert found == (expected.status_code, level(expected.json()))


def test_streams_end_in_http_1_0(engine, proxy):
    data = json.dumps({**BODY, "stream": True}).encode()
    got = talk(proxy.url, request(b"Content-Length: %d" % len(data), data=data, version=b"HTTP/1.0"))
    assert b"transfer-encoding" not in got.lower() and got.endswith(b"data: [DONE]\n\n")
    same(engine, proxy, "/v1/chat/completions", {**BODY, "stream": True})
