"""Segment files: how the spool's records lie in them.

A segment is a row of frames ``u32 length | u32 crc32c(payload) | payload`` (little-endian), a payload is ``u8 kind |
u32 head length | head (JSON) | request | reply``. A torn, zero-filled or flipped tail ends the segment at its last
good frame.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import orjson
from crc32c import crc32c

from slipstream_proxy.json_types import Json, JsonObject
from slipstream_proxy.records import CallHead, Kind

_FRAME: Final = struct.Struct("<II")
_PAYLOAD: Final = struct.Struct("<BI")
_dumps: Final[Callable[[object], bytes]] = orjson.dumps
_checksum: Final[Callable[..., int]] = crc32c
_NAME = re.compile(r"^([A-Za-z0-9_.]+)-(\d{8})\.seg$")
MAX_PAYLOAD = 2**31


def frame(
    kind: Kind, head: JsonObject | CallHead, request: bytes = b"", reply: bytes = b"", common: bytes = b""
) -> tuple[bytes, bytes, bytes]:
    """One frame in three pieces, so that large bodies are copied once, when they are written. The head gets
    ``request_bytes``: where in the payload's rest the reply begins. ``common`` (``common_head``) stands before it.
    """
    if isinstance(head, dict):
        head["request_bytes"] = len(request)
    else:
        head.request_bytes = len(request)
    try:
        text: bytes = _dumps(head)
    except TypeError:
        text = _dumps(_whole(head if isinstance(head, dict) else asdict(head)))
    if common:
        text = b"%b,%b" % (common, text[1:])
    start: bytes = _PAYLOAD.pack(kind, len(text)) + text
    check = _checksum(reply, _checksum(request, _checksum(start)))
    return _FRAME.pack(len(start) + len(request) + len(reply), check) + start, request, reply


def common_head(members: JsonObject) -> bytes:
    """What many heads begin with, to be made once for them: a JSON object without its closing brace."""
    try:
        return orjson.dumps(members)[:-1]
    except TypeError:
        return orjson.dumps(_whole(members))[:-1]


def _whole(value: Json) -> Json:
    """Without halves of surrogate pairs, which JSON can write and UTF-8 cannot: a client's model may be called so."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_whole(k): _whole(v) for k, v in value.items()}
    return [_whole(v) for v in value] if isinstance(value, list | tuple) else value


def encode(kind: Kind, head: JsonObject | CallHead, request: bytes = b"", reply: bytes = b"") -> bytes:
    """One frame."""
    return b"".join(frame(kind, head, request, reply))


@dataclass(slots=True, frozen=True)
class Frame:
    kind: Kind
    head: JsonObject
    request: bytes
    reply: bytes
    end: int
    """Offset in the segment at which the next frame begins."""


class Segment(Iterator[Frame]):
    """The good frames of a segment from ``offset`` on.

    ``torn`` is None at a clean end, else why reading stopped at ``offset``: ``short`` (a frame is cut off, or still
    being written), ``bad``.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.torn: str | None = None
        with path.open("rb") as file:
            self._size = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ) if self._size else b""

    def __next__(self) -> Frame:
        start, left = self.offset, self._size - self.offset
        if left <= 0:
            raise StopIteration
        if left < _FRAME.size:
            return self._stop("short")
        length, check = _FRAME.unpack_from(self._map, start)
        begin = start + _FRAME.size
        if not _PAYLOAD.size <= length <= MAX_PAYLOAD:
            return self._stop("bad")
        if length > left - _FRAME.size:
            return self._stop("short")
        payload = self._map[begin : begin + length]
        if crc32c(payload) != check:
            return self._stop("bad")
        try:
            kind, size = _PAYLOAD.unpack_from(payload)
            head = orjson.loads(payload[_PAYLOAD.size : _PAYLOAD.size + size])
            body = _PAYLOAD.size + size
            cut = body + int(head.get("request_bytes", 0))
            frame = Frame(Kind(kind), head, payload[body:cut], payload[cut:], begin + length)
        except (ValueError, struct.error, AttributeError, TypeError):
            return self._stop("bad")
        self.offset = frame.end
        return frame

    def _stop(self, why: str) -> Frame:
        self.torn = why
        raise StopIteration


def read_segment(path: Path, offset: int = 0) -> Segment:
    """Iterate over a segment's good frames; what was left unread and why stands in ``.offset`` and ``.torn``."""
    return Segment(path, offset)


def list_segments(directory: Path) -> dict[str, list[tuple[int, Path]]]:
    """Writer → its segments in order."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in directory.iterdir() if directory.is_dir() else ():
        if m := _NAME.match(path.name):
            found.setdefault(m[1], []).append((int(m[2]), path))
    return {writer: sorted(segments) for writer, segments in sorted(found.items())}
