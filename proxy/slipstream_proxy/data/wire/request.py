"""A request's head as the relay sees it, whether the fast path or aiohttp read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.wire.http1 import FIELD_PATTERN, HOP_BY_HOP, RepeatedHead

if TYPE_CHECKING:
    from mypy_extensions import i64

    from slipstream_proxy.data.wire.identity import Prefix, Tags
    from slipstream_proxy.dialects.base import Dialect
    from slipstream_proxy.keys import Key

_DROPPED: Final = HOP_BY_HOP | {
    b"host",
    b"accept-encoding",
    b"content-encoding",
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"x-goog-api-key",
    b"cookie",
}
"""Never sent upstream: fields of this hop, and the client's credentials."""

MIN_RATE: Final = 1024.0
"""Bytes a second of a body. A slower client uses up its ``header_timeout``, so that it holds no connection."""

EPISODE_FIELD: Final = b"x-slipstream-episode"
_EPISODE: Final = b"x-slipstream-episode: "
_EPISODE_LINE: Final = b"\r\n" + _EPISODE
LONGEST_EPISODE: Final = 128
"""Bytes of an episode's name in a head that is not parsed."""

Headers = dict[bytes, bytes]
Fields = tuple[Headers, Headers, list[bytes]]


class RequestHead:
    """A request without its body, read once: ``headers`` by lower-case name (the first of several), ``ours`` those of
    them that are tags.

    ``block`` are the lines that go upstream, with their line ends. A client's next request mostly has the same head,
    so that this is shared by all of them and never changed; ``tags`` keeps what ``read_tags`` found in it.
    """

    __slots__ = (
        *("attempt", "block", "caller", "dialect", "has_id", "headers", "idempotency", "is_json", "ours", "path"),
        *("prefix", "tags"),
    )

    def __init__(self, prefix: Prefix, dialect: Dialect, fields: Fields) -> None:
        self.path, self.prefix, self.dialect = prefix.path, prefix, dialect
        self.headers, self.ours, lines = fields
        self.block = b"".join(lines)
        retry = self.headers.get(b"x-stainless-retry-count", b"0")
        self.attempt = int(retry) if retry.isdigit() and len(retry) < 4 else 0
        self.idempotency = self.headers.get(b"idempotency-key")
        self.is_json = self.headers.get(b"content-type") == b"application/json"
        self.has_id = b"x-request-id" in self.headers
        self.tags: Tags | None = None
        self.caller: tuple[Key, str | None, int] | None = None
        """As ``Admission`` remembers it."""

    def of_episode(self, name: bytes) -> RequestHead:
        """The same head, but that its header names this episode."""
        headers, ours = {**self.headers, EPISODE_FIELD: name}, {**self.ours, EPISODE_FIELD: name}
        return RequestHead(self.prefix, self.dialect, (headers, ours, [self.block]))


class RepeatedRequest(RepeatedHead[RequestHead]):
    """A client's head. Its next one mostly differs in the length alone, or in the episode's name, too."""

    __slots__ = ("_behind", "_name")

    def __init__(self, head: bytes, value: RequestHead) -> None:
        super().__init__(head, value, once=True)
        self._name = self._behind = 0
        """Where the episode's name begins and ends; 0: it must not differ."""
        at = self._before.find(_EPISODE_LINE)
        if at >= 0 and head.lower().count(EPISODE_FIELD) == 1:
            self._name = at + len(_EPISODE_LINE)
            self._behind = self._before.find(b"\r", self._name)

    def takes(self, data: bytes) -> bool:
        """``matches``; ``value`` is that of the episode which is named."""
        return self.matches(data) or (self._renames(data) and self.matches(data))

    def _renames(self, data: bytes) -> bool:
        """Whether another episode is named, as far as to the length in the same head."""
        start: i64 = self._name
        before = self._before
        if not start or not data.startswith(before[:start]):
            return False
        behind, end = before[self._behind :], start
        most: i64 = min(len(data), self._name + LONGEST_EPISODE)
        while end < most and data[end] != 0x0D:
            end += 1
        stop: i64 = end + len(behind)
        name = data[start:end]
        if data[end:stop] != behind or not name.replace(b"-", b"").isalnum():
            return False
        self._before, self._behind, self.value = data[:stop], end, self.value.of_episode(name)
        return True


_known: Final[dict[bytes, tuple[bytes, bytes, bytes | None, bool]]] = {}
"""Header line → (name, value, line for the upstream, is it a tag?). A client sends nearly the same head each time."""


_LENGTH: Final = b"content-length: "


def _read_line(line: bytes) -> tuple[bytes, bytes, bytes | None, bool] | None:
    digits = line[len(_LENGTH) :]
    if digits.isdigit() and line[: len(_LENGTH)].lower() == _LENGTH:
        return b"content-length", digits, None, False
    varying = _varying(line)
    if varying is not None:
        return varying
    m = FIELD_PATTERN.fullmatch(line)
    if m is None:
        return None
    low, value = m[1].lower(), m[2].rstrip(b" \t")
    ours = low.startswith(b"x-slipstream-")
    read = (
        low,
        value,
        None if ours or low in _DROPPED else b"%b: %b\r\n" % (m[1], value),
        ours or low == b"traceparent",
    )
    if low not in _VARYING and len(line) < 512:
        if len(_known) >= 2048:
            _known.clear()
        _known[line] = read
    return read


_VARYING: Final = frozenset((b"content-length", EPISODE_FIELD, b"x-request-id", b"traceparent", b"idempotency-key"))


def _varying(line: bytes) -> tuple[bytes, bytes, bytes | None, bool] | None:
    """A line that names an episode as nearly all do. None: ``FIELD_PATTERN`` decides."""
    value = line[len(_EPISODE) :]
    if line.startswith(_EPISODE) and value.replace(b"-", b"").isalnum():
        return EPISODE_FIELD, value, None, True
    return None


def parse_fields(text: bytes) -> Fields | None:
    """Header lines → headers by name, tags, lines for the upstream. None: not plain enough, aiohttp decides."""
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
            if low in (b"content-length", b"host", b"connection"):
                return None
        else:
            headers[low] = value
            if tag:
                ours[low] = value
        if forward is not None:
            lines.append(forward)
    return headers, ours, lines


def forwardable(pairs: list[tuple[bytes, bytes]]) -> Fields:
    """The same from pairs that were parsed and checked already, without those that Connection names as this hop's."""
    headers: Headers = {}
    ours: Headers = {}
    lines: list[bytes] = []
    named = {n.strip().lower() for name, value in pairs if name.lower() == b"connection" for n in value.split(b",")}
    for name, value in pairs:
        low = name.lower()
        headers.setdefault(low, value)
        if low.startswith(b"x-slipstream-"):
            ours.setdefault(low, value)
        elif low not in _DROPPED and low not in named:
            lines.append(b"%b: %b\r\n" % (name, value))
            if low == b"traceparent":
                ours.setdefault(low, value)
    return headers, ours, lines
