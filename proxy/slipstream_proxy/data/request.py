"""A request as the relay sees it, wherever it came from (fast path or aiohttp's), and what it answers to."""

from __future__ import annotations

import re
from typing import Protocol

_DROPPED = frozenset((
    b"host", b"content-length", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"expect", b"accept-encoding", b"content-encoding",
    b"authorization", b"x-api-key", b"api-key", b"cookie",
))
"""Never sent upstream: fields of this hop, and the client's credentials."""

_LINE = re.compile(rb"(?m)^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)\r\n")


class Request:
    """``headers`` by lower-case name (the first of several), ``lines`` what goes upstream."""

    __slots__ = ("body", "headers", "lines", "path")

    def __init__(self, path: str, headers: dict[bytes, bytes], lines: list[bytes], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.lines = lines
        self.body = body


class Sink(Protocol):
    """Where a reply goes. ``fields`` are header lines without their end."""

    def send_whole(self, status: int, fields: list[bytes], body: bytes, *, close: bool = False) -> None: ...
    def send_head(self, status: int, fields: list[bytes]) -> None: ...
    def send_part(self, data: bytes) -> None: ...
    def send_end(self) -> None: ...
    def break_off(self) -> None:
        """End the connection without the body's end: the client sees that something broke."""


def parse_fields(text: bytes) -> tuple[dict[bytes, bytes], list[bytes]] | None:
    """Header lines (each with its CRLF) → headers by name, lines for the upstream. None: not plain enough, aiohttp's parser decides."""
    pairs = _LINE.findall(text)
    if len(pairs) != text.count(b"\n"):
        return None
    headers: dict[bytes, bytes] = {}
    lines: list[bytes] = []
    for name, value in pairs:
        low = name.lower()
        if low in headers:
            if low in (b"content-length", b"host"):
                return None
        else:
            headers[low] = value.rstrip(b" \t")
        if low not in _DROPPED and not low.startswith(b"x-slipstream-"):
            lines.append(b"%b: %b" % (name, value))
    return headers, lines


def forwardable(pairs: list[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], list[bytes]]:
    """The same from pairs that were parsed and checked already."""
    headers: dict[bytes, bytes] = {}
    lines: list[bytes] = []
    for name, value in pairs:
        low = name.lower()
        headers.setdefault(low, value)
        if low not in _DROPPED and not low.startswith(b"x-slipstream-"):
            lines.append(b"%b: %b" % (name, value))
    return headers, lines
