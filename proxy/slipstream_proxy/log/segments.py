"""Segment files: how the spool's records lie in them.

A segment is a row of frames ``u32 length | u32 crc32c(payload) | payload`` (little-endian), a payload is ``u8 kind |
u32 head length | head (JSON) | request | reply``. A torn, zero-filled or flipped tail ends the segment at its last
good frame.

Segments are read and not mapped: of a map, a page that the disk cannot give, or that a writer has just cut off, ends
the process (SIGBUS).
"""

from __future__ import annotations

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
from slipstream_proxy.log.records import CallHead, Kind

_FRAME: Final = struct.Struct("<II")
_PAYLOAD: Final = struct.Struct("<BI")
_dumps: Final[Callable[[object], bytes]] = orjson.dumps
_checksum: Final[Callable[..., int]] = crc32c
_NAME = re.compile(r"^([A-Za-z0-9_.]+)-(\d{8})\.seg$")
MAX_PAYLOAD = 2**31
LARGE_PAYLOAD_BYTES = 64 * 2**20
"""Bytes of a payload from which on its request and reply are not read with the frame."""
JOINED_BYTES: Final = 2**14
"""Bytes of a payload that is written as one piece."""
_WINDOW: Final = 65536
_PIECE: Final = 2**20
"""Bytes that are read at once: of small frames, and of a large one."""


def frame(kind: Kind, head: JsonObject | CallHead | bytes, request: bytes = b"", reply: bytes = b"") -> list[bytes]:
    """One frame in pieces. A large one's bodies are copied once, when they are written; of a small one the copy costs
    less than to look at each piece. The head gets ``request_bytes``: where in the payload's rest the reply begins. One
    that is written already has it.
    """
    if isinstance(head, bytes):
        text = head
    else:
        if isinstance(head, dict):
            head["request_bytes"] = len(request)
        else:
            head.request_bytes = len(request)
        try:
            text = _dumps(head)
        except TypeError:
            text = _dumps(_whole(head if isinstance(head, dict) else asdict(head)))
    start = _start(kind, len(text))
    size = len(start) + len(text) + len(request) + len(reply)
    if size <= JOINED_BYTES:
        whole = b"%b%b%b%b" % (start, text, request, reply)
        return [_pack(size, _checksum(whole)), whole]
    start += text
    check = _checksum(reply, _checksum(request, _checksum(start)))
    return [_pack(size, check), start, request, reply]


_pack: Final[Callable[[int, int], bytes]] = _FRAME.pack
_CALL: Final = Kind.CALL
_CALL_STARTS: Final = [_PAYLOAD.pack(Kind.CALL, size) for size in range(2048)]


def _start(kind: Kind, size: int) -> bytes:
    """What stands before a head of so many bytes."""
    return _CALL_STARTS[size] if kind is _CALL and size < 2048 else _PAYLOAD.pack(kind, size)


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


def encode(kind: Kind, head: JsonObject | CallHead | bytes, request: bytes = b"", reply: bytes = b"") -> bytes:
    """One frame."""
    return b"".join(frame(kind, head, request, reply))


@dataclass(slots=True, frozen=True)
class BodyPlace:
    """Where a large frame's request lies, and behind it the reply. Sizes are in bytes."""

    path: Path
    offset: int
    request: int
    reply: int


@dataclass(slots=True, frozen=True)
class Frame:
    kind: Kind
    head: JsonObject
    request: bytes
    reply: bytes
    end: int
    """Offset in the segment at which the next frame begins."""
    place: BodyPlace | None = None
    """Of a payload above ``LARGE_PAYLOAD_BYTES``, whose request and reply are left empty here."""


class Segment(Iterator[Frame]):
    """The good frames of a segment from ``offset`` on. Raises ``OSError`` where the disk cannot be read.

    ``torn`` is None at a clean end, else why reading stopped at ``offset``: ``short`` (a frame is cut off, or still
    being written), ``bad``.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._fd = -1
        self.path = path
        self.offset = offset
        self.torn: str | None = None
        self._window, self._from = b"", offset
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _read(self, at: int, size: int) -> bytes:
        """So many bytes; fewer where a writer has cut off its half frame meanwhile."""
        start = at - self._from
        if start >= 0 and start + size <= len(self._window):
            return self._window[start : start + size]
        if size > _WINDOW:
            return os.pread(self._fd, size, at)
        self._window, self._from = os.pread(self._fd, _WINDOW, at), at
        return self._window[:size]

    def __next__(self) -> Frame:
        start, left = self.offset, self._size - self.offset
        if left <= 0:
            raise StopIteration
        header = self._read(start, _FRAME.size)
        if left < _FRAME.size or len(header) < _FRAME.size:
            return self._stop("short")
        length, check = _FRAME.unpack(header)
        begin = start + _FRAME.size
        if not _PAYLOAD.size <= length <= MAX_PAYLOAD:
            return self._stop("bad")
        if length > left - _FRAME.size:
            return self._stop("short")
        try:
            frame = (
                self._large(begin, length, check) if length > LARGE_PAYLOAD_BYTES else self._small(begin, length, check)
            )
        except EOFError:
            return self._stop("short")
        except (ValueError, struct.error, AttributeError, TypeError):
            return self._stop("bad")
        self.offset = frame.end
        return frame

    def _small(self, begin: int, length: int, check: int) -> Frame:
        payload = self._read(begin, length)
        if len(payload) < length:
            raise EOFError
        if _checksum(payload) != check:
            raise ValueError
        kind, size = _PAYLOAD.unpack_from(payload)
        head = orjson.loads(payload[_PAYLOAD.size : _PAYLOAD.size + size])
        body = _PAYLOAD.size + size
        cut = body + int(head.get("request_bytes", 0))
        return Frame(Kind(kind), head, payload[body:cut], payload[cut:], begin + length)

    def _large(self, begin: int, length: int, check: int) -> Frame:
        at, end, found = begin, begin + length, 0
        while at < end:
            piece = os.pread(self._fd, min(_PIECE, end - at), at)
            if not piece:
                raise EOFError
            at, found = at + len(piece), _checksum(piece, found)
        if found != check:
            raise ValueError
        kind, size = _PAYLOAD.unpack(self._read(begin, _PAYLOAD.size))
        body = begin + _PAYLOAD.size + size
        head = orjson.loads(self._read(begin + _PAYLOAD.size, size))
        request = int(head.get("request_bytes", 0))
        return Frame(Kind(kind), head, b"", b"", end, BodyPlace(self.path, body, request, end - body - request))

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
