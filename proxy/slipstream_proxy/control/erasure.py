"""What is forgotten, gone from the spool too: a frame of the same length that says nothing takes the place of each of
its records.

Only records that a verified snapshot of the store holds are touched, so that a write that is cut off costs nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

import orjson
from crc32c import crc32c

from slipstream_proxy.records import Kind
from slipstream_proxy.segments import Frame, list_segments, read_segment
from slipstream_proxy.store.values import Position

BLANK = "blank"
_PIECE = 2**20
NAMED = ("reward", "episode")
"""Mutations that hold what somebody wrote about an episode."""
Name = tuple[str, str]
"""(key, episode)."""


def name_of(frame: Frame) -> Name | None:
    """Whose record it is, where it holds text or tokens."""
    data = frame.head if frame.kind is Kind.CALL else frame.head.get("data", {})
    if frame.kind is Kind.CALL or frame.head.get("op") in NAMED:
        return str(data.get("key")), str(data.get("episode"))
    return None


def nothing(frame: Frame, size: int) -> tuple[bytes, int] | None:
    """A frame of ``size`` bytes with the id and the time of this one: how it begins, and how many spaces follow.

    None: it does not fit.
    """
    at = float(frame.head.get("at") or 0.0) + float(frame.head.get("seconds") or 0.0)
    when = {name: frame.head[name] for name in ("tick", "boot") if name in frame.head}
    text = orjson.dumps({"id": frame.head.get("id"), "op": BLANK, "at": at, "data": {}, **when})
    spaces = size - 8 - 5 - len(text)
    if spaces < 0:
        return None
    start = struct.pack("<BI", Kind.MUTATION, len(text)) + text
    check = crc32c(start)
    for piece in _spaces(spaces):
        check = crc32c(piece, check)
    return struct.pack("<II", len(start) + spaces, check) + start, spaces


def _spaces(count: int) -> Iterator[bytes]:
    for at in range(0, count, _PIECE):
        yield b" " * min(_PIECE, count - at)


def blank(folder: Path, reached: dict[str, Position], wanted: Collection[Name]) -> int:
    """Blank the records of these episodes that stand before ``reached``. → How many."""
    count = 0
    for writer, segments in list_segments(folder).items():
        end = reached.get(writer)
        for number, path in segments:
            if end is not None and number <= end.segment:
                count += _blank(path, end.offset if number == end.segment else None, wanted)
    return count


def _blank(path: Path, limit: int | None, wanted: Collection[Name]) -> int:
    found: list[tuple[int, bytes, int]] = []
    try:
        segment = read_segment(path)
    except FileNotFoundError:
        return 0
    begin = 0
    for frame in segment:
        if limit is not None and frame.end > limit:
            break
        if name_of(frame) in wanted and (instead := nothing(frame, frame.end - begin)):
            found.append((begin, *instead))
        begin = frame.end
    if found:
        fd = os.open(path, os.O_WRONLY)
        try:
            for at, start, spaces in found:
                # The usual frame goes in one write: a kill between two would leave one that ends its segment.
                with_start = min(spaces, _PIECE)
                os.pwrite(fd, start + b" " * with_start, at)
                at += len(start) + with_start
                for piece in _spaces(spaces - with_start):
                    os.pwrite(fd, piece, at)
                    at += len(piece)
            os.fdatasync(fd)
        finally:
            os.close(fd)
    return len(found)
