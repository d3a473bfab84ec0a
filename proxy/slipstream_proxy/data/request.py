"""A request as the relay sees it, wherever it came from (fast path or aiohttp's), and what it answers to."""

from __future__ import annotations

import re
from typing import Protocol

_DROPPED = frozenset(
    (
        b"host",
        b"content-length",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"accept-encoding",
        b"content-encoding",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"cookie",
    )
)
"""Never sent upstream: fields of this hop, and the client's credentials."""

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)")


Headers = dict[bytes, bytes]
Fields = tuple[Headers, Headers, list[bytes]]


class Request:
    """``headers`` by lower-case name (the first of several), ``ours`` those of them that are tags, ``lines`` what goes upstream."""

    __slots__ = ("body", "headers", "lines", "ours", "path")

    def __init__(self, path: str, fields: Fields, body: bytes) -> None:
        self.path = path
        self.headers, self.ours, self.lines = fields
        self.body = body


class Sink(Protocol):
    """Where a reply goes. ``fields`` are header lines without their end."""

    def send_whole(self, status: int, fields: list[bytes], body: bytes, *, close: bool = False) -> None: ...
    def send_head(self, status: int, fields: list[bytes]) -> None: ...
    def send_part(self, data: bytes) -> None: ...
    def send_end(self) -> None: ...
    def break_off(self) -> None:
        """End the connection without the body's end: the client sees that something broke."""


_known: dict[bytes, tuple[bytes, bytes, bytes | None, bool]] = {}
"""Header lines seen before → (name, value, line for the upstream, is it a tag?): a client sends nearly the same head each time."""


def _read_line(line: bytes) -> tuple[bytes, bytes, bytes | None, bool] | None:
    m = _LINE.fullmatch(line)
    if m is None:
        return None
    low, value = m[1].lower(), m[2].rstrip(b" \t")
    ours = low.startswith(b"x-slipstream-")
    read = (low, value, None if ours or low in _DROPPED else b"%b: %b" % (m[1], value), ours or low == b"traceparent")
    if low not in _VARYING and len(line) < 512:
        if len(_known) >= 2048:
            _known.clear()
        _known[line] = read
    return read


_VARYING = frozenset((b"content-length", b"x-slipstream-episode", b"x-request-id", b"traceparent", b"idempotency-key"))


def parse_fields(text: bytes) -> Fields | None:
    """Header lines (each with its CRLF) → headers by name, tags, lines for the upstream. None: not plain enough, aiohttp's parser decides."""
    headers: Headers = {}
    ours: Headers = {}
    lines: list[bytes] = []
    found = text.split(b"\r\n")
    if found.pop():
        return None
    for line in found:
        read = _known.get(line) or _read_line(line)
        if read is None:
            return None
        low, value, forward, tag = read
        if low in headers:
            if low in (b"content-length", b"host"):
                return None
        else:
            headers[low] = value
            if tag:
                ours[low] = value
        if forward is not None:
            lines.append(forward)
    return headers, ours, lines


def forwardable(pairs: list[tuple[bytes, bytes]]) -> Fields:
    """The same from pairs that were parsed and checked already."""
    headers: Headers = {}
    ours: Headers = {}
    lines: list[bytes] = []
    for name, value in pairs:
        low = name.lower()
        headers.setdefault(low, value)
        if low.startswith(b"x-slipstream-"):
            ours.setdefault(low, value)
        elif low not in _DROPPED:
            lines.append(b"%b: %b" % (name, value))
            if low == b"traceparent":
                ours.setdefault(low, value)
    return headers, ours, lines
